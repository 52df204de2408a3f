"""The files of a run: writing a Result into a run directory, and reading it back.

    federation.toml   the resolved federation
    summary.json      the run as a whole, and each device (contract, version 1)
    rounds.csv        one row per round
    devices.csv       one row per device, for spreadsheets
    accuracy.csv      one row per round and evaluated device
    instruments.csv   one row per round, instrument of the method and device; the coordinator's have no device
    missed.csv        one row per exchange that closed without a device, with the reason
    insight.npz       the insight into the models at the end, for pictures

Each file is replaced at once, so that a reader never sees half of it; summary.json comes last.
"""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from coordinator.ledger import LEDGER
from coordinator.record.round_result import CURVES, Missed, RoundResult
from coordinator.results.figures.device_figures import cells, csv_figures, summed
from coordinator.results.figures.insight import Insight
from coordinator.results.figures.result import METERED, DeviceResult, Result, spread
from coordinator.results.figures.round_figures import (
    FIELDS,
    OWN_TASK_COLUMNS,
    PERSONAL,
    SHARED,
    SHARED_COLUMNS,
    csv_columns,
    figures_of_rounds,
    round_cells,
)
from coordinator.results.figures.run_figures import fields_read
from coordinator.results.report import text_files
from coordinator.results.report.summary import SUMMARY_VERSION, summary, summary_text
from coordinator.results.report.text_files import as_text, csv_text, read_text
from edge_sdk.at_rest.foreign import LARGEST, LARGEST_INTEGER, check_fields, open_foreign
from edge_sdk.errors import StoreError, UsageError

T = TypeVar("T")
INSIGHT = "insight.npz"
_MOST_INSIGHT_BYTES = 2**28
"""The most that its arrays may take in memory."""
ACCURACY_COLUMNS = ("round", "device", *CURVES, "standalone_accuracy")
INSTRUMENT_COLUMNS = ("round", "instrument", "device", "value")


def write_run(result: Result, resolved_toml: str, directory: str | os.PathLike[str]) -> None:
    """Write all files of a run; existing ones are replaced.

    Raises UsageError if `directory` cannot be a directory, StoreError if it cannot be written.
    """
    folder = Path(directory)
    files: dict[str, str | bytes] = {
        "federation.toml": resolved_toml,
        **{f"{name}.csv": csv_text(columns, rows) for name, (columns, rows) in run_tables(result).items()},
        **({INSIGHT: insight_bytes(result.insight)} if result.insight is not None else {}),
        "summary.json": summary_text(summary(result)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            text_files.replace_file(folder / name, text)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder}: is a file, not a folder; give --out another name") from None
    except OSError as error:
        raise StoreError(f"{folder}: cannot write the run ({error.strerror}); free or change the place") from error


def run_tables(result: Result) -> dict[str, tuple[Sequence[str], Iterable[dict[str, object]]]]:
    """The columns and the rows of each CSV file, by its name."""
    return {
        "rounds": (csv_columns(), _round_rows(result)),
        "devices": ([figure.name for figure in csv_figures()], _device_rows(result)),
        "accuracy": (ACCURACY_COLUMNS, _accuracy_rows(result)),
        "instruments": (INSTRUMENT_COLUMNS, _instrument_rows(result)),
        "missed": (Missed._fields, (each._asdict() for each in result.missed)),
    }


def read_run(directory: str | os.PathLike[str]) -> Result:
    """The Result that write_run stored.

    Its standalone history has accuracies only; the other figures stand in the run directory `standalone/`.
    Raises UsageError, in one line, if this is not a run directory, or if one of its files is missing or unreadable.
    """
    folder = Path(directory)
    whole = _read_summary(folder / "summary.json")
    measured = _read_table(folder / "accuracy.csv", ACCURACY_COLUMNS, _measured_from)
    curves = {name: _by_round(measured, name) for name in CURVES}
    instruments = _read_instruments(folder)
    rounds = _read_table(
        folder / "rounds.csv", csv_columns(older=True), lambda row: _round_from(row, curves, instruments)
    )
    with text_files.reading(folder / "summary.json", _remedy(folder / "summary.json")):
        found = _result(whole, [entry for entry, _ in rounds], _by_round(measured, "standalone_accuracy"))
        _check_values(found)
    _check_complete(folder, found, [count for _, count in rounds])
    return replace(found, missed=_read_missed(folder), insight=read_insight(folder))


def insight_bytes(insight: Insight) -> bytes:
    """An npz file; the same arrays give the same bytes."""
    arrays = {each.name: getattr(insight, each.name) for each in fields(insight)}
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


def read_insight(folder: Path) -> Insight | None:
    """The insight in a run directory, or None without one.  Raises UsageError if the file cannot be read."""
    path = folder / INSIGHT
    if not path.exists():
        return None
    with (
        text_files.reading(path, "restore a copy, or remove it, then a picture is missing"),
        open_foreign(path) as file,
    ):
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_INSIGHT_BYTES:
                raise ValueError("an array of this size does not fit")
        with np.load(file, allow_pickle=False) as arrays:
            known = {each.name for each in fields(Insight)}
            found = Insight(**{name: arrays[name] for name in arrays.files if name in known})
        found.check()
        return found


def _round_rows(result: Result) -> Iterable[dict[str, object]]:
    alone = {entry.round: entry for entry in result.standalone_history}
    unknown: dict[str, object] = {f"device_{of}": None for of in METERED.keys() - result.metered}
    for entry in result.history:
        federated = spread(list(result.learned(entry.accuracy).values()))
        own_task = result.own_task(entry.local_accuracy)
        standalone = alone[entry.round].accuracy if entry.round in alone else {}
        yield {
            "round": entry.round,
            **{f"accuracy_{key}": federated[key] for key in ("mean", "min", "max", "std") if federated},
            "measured": len(result.learned(entry.accuracy)),
            "standalone_mean": spread(list(result.learned(standalone).values())).get("mean"),
            **dict(_shared_cells(result, entry)),
            **{key: own_task.get(key) for key in OWN_TASK_COLUMNS},
            **{f"{key}_mean": spread([*result.learned(getattr(entry, key)).values()]).get("mean") for key in PERSONAL},
            **round_cells(entry),
            **unknown,
        }


def _shared_cells(result: Result, entry: RoundResult) -> Iterator[tuple[str, object]]:
    """The cells of the models that devices share, where they were measured."""
    for model in SHARED:
        found = result.learned(entry.of(model))
        if not found:
            continue
        own_task = result.own_task(entry.of(model, "local_accuracy"))
        cells = {
            "gm": result.gm_of(found),
            "mean": statistics.fmean(found.values()),
            "measured": len(found),
            **own_task,
        }
        yield from ((column, cells.get(name)) for name, column in SHARED_COLUMNS[model].items())


def _device_rows(result: Result) -> Iterable[dict[str, object]]:
    unknown: dict[str, object] = {METERED[of]: None for of in METERED.keys() - result.metered}
    return ({**cells(device), **unknown} for device in result.devices)


def _instrument_rows(result: Result) -> Iterable[dict[str, object]]:
    for entry in result.history:
        for name, by_source in sorted(entry.instruments.items()):
            for source, value in sorted(by_source.items()):
                yield {"round": entry.round, "instrument": name, "device": source, "value": value}


def _read_instruments(folder: Path) -> dict[int, dict[str, dict[str, float]]]:
    """Round -> instrument -> device -> value; empty for a run from before there were instruments."""
    found: dict[int, dict[str, dict[str, float]]] = {}
    path = folder / "instruments.csv"

    def add(row: Mapping[str, str]) -> None:
        by_name = found.setdefault(_whole_number(row["round"]), {})
        by_name.setdefault(row["instrument"], {})[row["device"]] = _number(row["value"])

    if path.exists():
        _read_table(path, INSTRUMENT_COLUMNS, add)
    return found


def _read_missed(folder: Path) -> tuple[Missed, ...]:
    """The missed exchanges; empty in a run that is older than this file."""
    path = folder / "missed.csv"

    def entry(row: Mapping[str, str]) -> Missed:
        return Missed(_whole_number(row["round"]), _whole_number(row["exchange"]), row["device"], row["reason"])

    return tuple(_read_table(path, Missed._fields, entry)) if path.exists() else ()


def _accuracy_rows(result: Result) -> Iterable[dict[str, object]]:
    columns = {
        **{name: {entry.round: getattr(entry, name) for entry in result.history} for name in CURVES},
        "standalone_accuracy": {entry.round: entry.accuracy for entry in result.standalone_history},
    }
    for number in sorted({number for rounds in columns.values() for number in rounds}):
        found = {name: rounds.get(number, {}) for name, rounds in columns.items()}
        for device in sorted({device for measured in found.values() for device in measured}):
            yield {
                "round": number,
                "device": device,
                **{name: measured.get(device) for name, measured in found.items()},
            }


def _read_text(path: Path) -> str:
    try:
        text = text_files.read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path.parent}: not a run directory, it has no {path.name}; give the folder of --out"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({text_files.reading_fault(error)}); {_remedy(path)}") from None
    if not text:
        raise UsageError(f"{path}: is empty; {_remedy(path)}")
    return text


def _remedy(path: Path) -> str:
    """The advice on a file of a run that cannot be read."""
    folder = path.parent
    if (folder / LEDGER).exists():
        return "restore a copy, or write it again with the command that made it and --resume"
    return f"restore a copy, or remove {folder} and run it again"


def _read_summary(path: Path) -> dict[str, Any]:
    with text_files.reading(path, _remedy(path)):
        whole = json.loads(_read_text(path))
    version = whole.get("version") if isinstance(whole, dict) else None
    if version != SUMMARY_VERSION:
        raise UsageError(
            f"{path}: version {version!r}, this edge-sdk reads {SUMMARY_VERSION}; use the one that wrote it"
        )
    return dict(whole)


def _read_table(path: Path, columns: Sequence[str], read: Callable[[Mapping[str, str]], T]) -> list[T]:
    """Return the result of `read` for each row of a CSV file.  Raises UsageError, which names the line."""
    text = _read_text(path)
    reader, found = csv.DictReader(io.StringIO(text)), list[T]()
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if not missing:
            found = [read(_whole(row)) for row in reader]
        cut = not text.endswith("\n")
    except (ValueError, LookupError, csv.Error):
        missing, cut = [], True
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UsageError(f"{path}: line 1 lacks the column {', '.join(missing[:3])}{more}; {_remedy(path)}")
    if cut:
        raise UsageError(f"{path}: line {reader.line_num} is cut off or changed; {_remedy(path)}")
    return found


def _whole(row: dict[str, str]) -> dict[str, str]:
    """A row with a cell in each column.  Raises ValueError for others, to which csv adds None."""
    if None in row or None in row.values():
        raise ValueError("more or fewer cells than columns")
    return {name: cell[1:] if cell[:1] == "'" and as_text(cell[1:]) == cell else cell for name, cell in row.items()}


def _check_complete(folder: Path, found: Result, measured: Sequence[int | None]) -> None:
    """Raise UsageError where the end of rounds.csv or accuracy.csv is lost.

    measured: the number of accuracies of each round in rounds.csv, or None if it is unknown.
    """
    path = folder / "rounds.csv"
    if len(found.history) < found.rounds_done:
        raise UsageError(f"{path}: ends after {len(found.history)} of {found.rounds_done} rounds; {_remedy(path)}")
    path = folder / "accuracy.csv"
    for entry, count in zip(found.history, measured, strict=True):
        here = len(found.learned(entry.accuracy))
        if count is not None and here < count:
            raise UsageError(f"{path}: has {here} of {count} accuracies after round {entry.round}; {_remedy(path)}")


def _check_values(found: Result) -> None:
    """Raise ValueError where a value of summary.json is another than its field can have."""
    check_fields(replace(found, history=(), standalone_history=(), insight=None))
    if found.card:
        card = {name: found.card[name] for name in _CARD if name in found.card or name != "users"}
        check_fields(card, _CARD)
        if not all(found.card["by_class"].values()) or len(found.card["range"]) != 2:
            raise ValueError("card does not fit")
    check_fields(dict(found.data), {"name": str, "sha256": str})
    if not found.models:
        raise ValueError("models does not fit")
    if not 0 <= found.time.get("start_s", 0.0) < _LATEST_S:
        raise ValueError("time.start_s does not fit")
    if any(not {"device", "reason", "message", "remedy"} >= each.keys() for each in found.refused_devices):
        raise ValueError("refused_devices does not fit")


_CARD: Mapping[str, Any] = {
    "samples": Mapping[str, int],
    "type": str,
    "shape": tuple[int, ...],
    "range": tuple[float, ...],
    "scale": float,
    "classes": int,
    "by_class": Mapping[str, tuple[int, ...]],
    "seed": int,
    "users": int,
}
_LATEST_S = 2.0**36
"""Seconds since 1970 up to which every system knows a date."""


def _number(cell: str) -> float:
    """The number in a cell.  Raises ValueError for one that is not finite, or beyond what can be added up."""
    found = float(cell)
    if not abs(found) <= LARGEST:
        raise ValueError("a number does not fit")
    return found


def _whole_number(cell: str) -> int:
    """The whole number in a cell.  Raises ValueError."""
    found = int(cell)
    if abs(found) > LARGEST_INTEGER:
        raise ValueError("a number does not fit")
    return found


def _result(
    whole: Mapping[str, Any], history: Iterable[RoundResult], alone: Mapping[int, Mapping[str, float]]
) -> Result:
    return Result(
        devices=tuple(_device_from(entry) for entry in whole["per_device"]),
        history=tuple(history),
        standalone_history=tuple(RoundResult(round=number, accuracy=alone[number]) for number in sorted(alone)),
        scalars={way: whole["scalars"][f"{way}_total"] for way in ("up", "down")},
        **fields_read(whole),
    )


class _Measured(NamedTuple):
    """A row of accuracy.csv."""

    round: int
    device: str
    values: Mapping[str, float]
    """By column; those that are known."""


def _measured_from(row: Mapping[str, str]) -> _Measured:
    columns = (*CURVES, "standalone_accuracy")
    return _Measured(
        _whole_number(row["round"]), row["device"], {name: _number(row[name]) for name in columns if row[name]}
    )


def _by_round(rows: Iterable[_Measured], column: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if column in row.values:
            found.setdefault(row.round, {})[row.device] = row.values[column]
    return found


def _device_from(entry: Mapping[str, Any]) -> DeviceResult:
    values = {key: value for key, value in entry.items() if key in DeviceResult.__dataclass_fields__}
    sums = {name: entry[name] for name in summed() if name not in values and entry.get(name)}
    return DeviceResult(**values | {"class_counts": tuple(entry.get("class_counts", ())), "sums": sums})


def _round_from(
    row: Mapping[str, str],
    curves: Mapping[str, Mapping[int, Mapping[str, float]]],
    instruments: Mapping[int, Mapping[str, Mapping[str, float]]],
) -> tuple[RoundResult, int | None]:
    """A round, and the number of accuracies in its row."""
    number = _whole_number(row["round"])
    values: dict[str, Any] = {name: curve.get(number, {}) for name, curve in curves.items()}
    values["instruments"] = instruments.get(number, {})
    sums: dict[str, float] = {}
    for figure in figures_of_rounds():
        text = row.get(figure.name, "")
        if figure.cell != "computed" and (text or not (figure.later or figure.metered)):
            (values if figure.name in FIELDS else sums)[figure.name] = _READ[figure.cell](text)
    return RoundResult(round=number, **values, sums=sums), _whole_number(row["measured"]) if row["measured"] else None


def _counted_reasons(text: str) -> dict[str, int]:
    """Read what `by_reason` wrote."""
    pairs = [each.rsplit(" ", 1) for each in text.split("; ") if each]
    return {reason: _whole_number(count) for reason, count in pairs}


_READ: Mapping[str, Callable[[str], Any]] = {
    "whole": _whole_number,
    "number": _number,
    "sum": lambda text: _whole_number(text) if text.isdigit() else _number(text),
    "text": str,
    "reasons": _counted_reasons,
}
"""How a cell of rounds.csv is read, by what it holds."""


def holds_finished_run(folder: Path) -> bool:
    """Whether a folder holds the results of a run that was completed.  Raises UsageError where they do not read."""
    return (folder / "summary.json").exists() and read_run(folder).completed


def tell_finished(folder: Path, *, as_json: bool) -> None:
    """Say in one line that the run in a folder is finished.  as_json: also print its summary."""
    sys.stderr.write(f"{folder}: the run is finished, there is nothing to continue\n")
    if as_json:
        sys.stdout.write(read_text(folder / "summary.json"))
