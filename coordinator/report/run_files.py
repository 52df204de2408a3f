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
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.record.insight import Insight
from coordinator.record.metrics import CURVES, PREFIXES, SHARES
from coordinator.record.result import METERED, DeviceResult, Missed, Result, RoundResult, spread
from coordinator.report import text_files
from coordinator.report.summary import SUMMARY_VERSION, summary
from coordinator.report.text_files import by_reason, csv_text
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.methods.requests import MeasuredModel

INSIGHT = "insight.npz"
OWN_TASK_COLUMNS = ("amp", "fm", "wlp", "sd", *(f"q{round(100 * share)}" for share in SHARES))
"""Columns of measures over the devices' own tasks."""
PERSONAL = ("pm_v", "pm_l")
"""FedNH's measures, whose columns are means over the learning devices."""
SHARED: tuple[MeasuredModel, ...] = ("global", "active")
"""The models that devices share; their columns have the model's prefix."""
SHARED_FIGURES = ("gm", "mean", "measured", "amp", "fm", "wlp")
"""Figures of a shared model: `gm` where all devices measured one model, means, and measures of its own tasks."""
SHARED_COLUMNS: Mapping[MeasuredModel, Mapping[str, str]] = {
    model: {name: "gm" if (model, name) == ("global", "gm") else PREFIXES[model] + name for name in SHARED_FIGURES}
    for model in SHARED
}
"""The column of each figure."""
COUNTS = ("contributors", "exchanges", "bytes_up", "bytes_down", "scalars_up", "scalars_down", "device_flops")
SECONDS = ("wall_s", "virtual_s", "device_s", "waited_s")
ROUND_COSTS = tuple(f"device_{of}" for of in METERED)
DEVICE_COSTS = ("waited_s", *METERED.values())
ROUND_COLUMNS = (
    "round",
    "accuracy_mean",
    "accuracy_min",
    "accuracy_max",
    "accuracy_std",
    "measured",
    "standalone_mean",
    *OWN_TASK_COLUMNS,
    *(f"{name}_mean" for name in PERSONAL),
    *(column for model in SHARED for column in SHARED_COLUMNS[model].values()),
    *COUNTS,
    *SECONDS,
    "device_j",
    "waited_for",
    "declined",
    "silent",
)
LATER_COLUMNS = ("declined", "silent")
"""Columns of rounds.csv that older run directories do not have."""
DEVICE_COLUMNS = (
    "id",
    "number",
    "board",
    "link",
    "model",
    "runtime",
    "learns",
    "joined",
    "samples",
    "test_samples",
    "classes",
    "class_counts",
    "accuracy",
    "standalone_accuracy",
    "before_accuracy",
    "now_accuracy",
    "global_accuracy",
    "bytes_up",
    "bytes_down",
    "rounds_done",
    "withheld",
    "not_served",
    "declined",
    "silent",
    *DEVICE_COSTS,
    "joules_source",
    "steps",
    "standalone_steps",
    "note",
)
ACCURACY_COLUMNS = ("round", "device", *CURVES, "standalone_accuracy")
INSTRUMENT_COLUMNS = ("round", "instrument", "device", "value")


def write_run(result: Result, resolved_toml: str, directory: str | os.PathLike[str]) -> None:
    """Write all files of a run; what was there of the same names is replaced.

    Raises UsageError where `directory` cannot be a directory, StoreError where it cannot be written.
    """
    folder = Path(directory)
    files: dict[str, str | bytes] = {
        "federation.toml": resolved_toml,
        **{f"{name}.csv": csv_text(columns, rows) for name, (columns, rows) in run_tables(result).items()},
        **({INSIGHT: insight_bytes(result.insight)} if result.insight is not None else {}),
        "summary.json": json.dumps(summary(result), indent=2, allow_nan=False) + "\n",
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
        "rounds": (ROUND_COLUMNS, _round_rows(result)),
        "devices": (DEVICE_COLUMNS, _device_rows(result)),
        "accuracy": (ACCURACY_COLUMNS, _accuracy_rows(result)),
        "instruments": (INSTRUMENT_COLUMNS, _instrument_rows(result)),
        "missed": (Missed._fields, (each._asdict() for each in result.missed)),
    }


def read_run(directory: str | os.PathLike[str]) -> Result:
    """The Result that write_run stored.

    Its standalone history has accuracies only; the other figures stand in the run directory `standalone/`.
    Raises UsageError, in one line, where this is no run directory or one of its files is missing or does not read.
    """
    folder = Path(directory)
    whole = _read_summary(folder / "summary.json")
    rounds = _read_table(folder / "rounds.csv", [name for name in ROUND_COLUMNS if name not in LATER_COLUMNS])
    measured = _read_table(folder / "accuracy.csv", ACCURACY_COLUMNS)
    try:
        instruments = _read_instruments(folder)
        found = _result(whole, rounds, measured)
        history = tuple(replace(entry, instruments=instruments.get(entry.round, {})) for entry in found.history)
        return replace(found, history=history, missed=_read_missed(folder), insight=read_insight(folder))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{folder}: its files do not fit together ({type(error).__name__}: {error}); run it again"
        ) from None


def insight_bytes(insight: Insight) -> bytes:
    """An npz file; the same arrays give the same bytes."""
    arrays = {each.name: getattr(insight, each.name) for each in fields(insight)}
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


def read_insight(folder: Path) -> Insight | None:
    """The insight in a run directory; None where it has none.  Raises UsageError where the file does not read."""
    path = folder / INSIGHT
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            known = {each.name for each in fields(Insight)}
            return Insight(**{name: arrays[name] for name in arrays.files if name in known})
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path}: does not read ({type(error).__name__}); remove it, or run it again") from None


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
            **{key: getattr(entry, key) for key in (*COUNTS, *SECONDS, "device_j", "waited_for", "silent")},
            "declined": by_reason(entry.declined),
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
    for device in result.devices:
        yield {
            **{name: getattr(device, name, None) for name in DEVICE_COLUMNS},
            **dict(zip(("before_accuracy", "now_accuracy"), device.since_joining or (None, None), strict=True)),
            "global_accuracy": device.metrics.get("global_accuracy"),
            **{name: getattr(device, name) or None for name in ("test_samples", "steps", "standalone_steps")},
            "learns": int(device.learns),
            "joined": int(device.joined),
            "declined": by_reason(device.declined),
            "classes": " ".join(map(str, device.classes)),
            "class_counts": " ".join(map(str, device.class_counts)),
            **unknown,
        }


def _instrument_rows(result: Result) -> Iterable[dict[str, object]]:
    for entry in result.history:
        for name, by_source in sorted(entry.instruments.items()):
            for source, value in sorted(by_source.items()):
                yield {"round": entry.round, "instrument": name, "device": source, "value": value}


def _read_instruments(folder: Path) -> dict[int, dict[str, dict[str, float]]]:
    """Round -> instrument -> device -> value; empty for a run from before there were instruments."""
    found: dict[int, dict[str, dict[str, float]]] = {}
    path = folder / "instruments.csv"
    for row in _read_table(path, INSTRUMENT_COLUMNS) if path.exists() else ():
        by_name = found.setdefault(int(row["round"]), {})
        by_name.setdefault(row["instrument"], {})[row["device"]] = float(row["value"])
    return found


def _read_missed(folder: Path) -> tuple[Missed, ...]:
    """Who missed which exchange; nobody in a run from before this was noted."""
    path = folder / "missed.csv"
    rows = _read_table(path, Missed._fields) if path.exists() else ()
    return tuple(Missed(int(row["round"]), int(row["exchange"]), row["device"], row["reason"]) for row in rows)


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
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path.parent}: not a run directory, it has no {path.name}; give the folder of --out"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({type(error).__name__})") from None


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        whole = json.loads(_read_text(path))
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON ({error}); run it again") from None
    version = whole.get("version") if isinstance(whole, dict) else None
    if version != SUMMARY_VERSION:
        raise UsageError(
            f"{path}: version {version!r}, this edge-sdk reads {SUMMARY_VERSION}; use the one that wrote it"
        )
    return dict(whole)


def _read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(_read_text(path)))
    missing = set(columns) - set(reader.fieldnames or ())
    if missing:
        raise UsageError(f"{path}: lacks the column {', '.join(sorted(missing))}; run it again")
    return list(reader)


def _result(whole: Mapping[str, Any], rounds: list[dict[str, str]], measured: list[dict[str, str]]) -> Result:
    curves = {name: _by_round(measured, name) for name in CURVES}
    alone = _by_round(measured, "standalone_accuracy")
    return Result(
        devices=tuple(_device_from(entry) for entry in whole["per_device"]),
        history=tuple(_round_from(row, curves) for row in rounds),
        standalone_history=tuple(RoundResult(round=number, accuracy=alone[number]) for number in sorted(alone)),
        refused_devices=tuple(whole["refused_devices"]),
        warnings=tuple(whole["warnings"]),
        stopped=whole.get("stopped", ""),
        card=whole.get("card", {}),  # older runs do not have it
        refused_by_devices=whole.get("refused_by_devices", {}),
        privacy=whole.get("privacy", {}),
        encoding=whole.get("encoding", {}),  # older runs do not have it
        memory=whole.get("memory", {}),  # older runs do not have it
        resumed=whole.get("resumed", {}),
        scalars={way: whole["scalars"][f"{way}_total"] for way in ("up", "down")},
        one_model=whole.get("one_model", False),
        models=tuple(whole.get("models", ("personal",))),  # older runs do not have it
        **{
            key: whole[key]
            for key in (
                "federation",
                "method",
                "seed",
                "rounds",
                "completed",
                "rounds_done",
                "updates",
                "refused_frames",
                "metrics",
                "time",
                "data",
                "versions",
                "transport",
                "reason",
            )
        },
    )


def _by_round(rows: Iterable[Mapping[str, str]], column: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row[column]:
            found.setdefault(int(row["round"]), {})[row["device"]] = float(row[column])
    return found


def _device_from(entry: Mapping[str, Any]) -> DeviceResult:
    values = {key: value for key, value in entry.items() if key in DeviceResult.__dataclass_fields__}
    return DeviceResult(**values | {"class_counts": tuple(entry.get("class_counts", ()))})


def _round_from(row: Mapping[str, str], curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> RoundResult:
    number = int(row["round"])
    values: dict[str, Any] = {name: curve.get(number, {}) for name, curve in curves.items()}
    cells = dict(row) | {key: "0" for key in ROUND_COSTS if row[key] == ""}  # where nobody metered
    values |= {key: int(cells[key]) for key in COUNTS} | {key: float(cells[key]) for key in (*SECONDS, "device_j")}
    values |= {"declined": _counted_reasons(row.get("declined", "")), "silent": int(row.get("silent") or 0)}
    return RoundResult(round=number, waited_for=row["waited_for"], **values)


def _counted_reasons(text: str) -> dict[str, int]:
    """Read what `by_reason` wrote."""
    pairs = [each.rsplit(" ", 1) for each in text.split("; ") if each]
    return {reason: int(count) for reason, count in pairs}
