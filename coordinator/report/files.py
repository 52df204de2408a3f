"""A run directory: writing a Result into it, and reading it back.

    federation.toml   the resolved federation
    summary.json      the run as a whole, and each device (contract, version 1)
    rounds.csv        one row per round
    devices.csv       one row per device, for spreadsheets
    accuracy.csv      one row per round and evaluated device

Each file is replaced at once, so that a reader never sees half of one; summary.json comes last.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.report import text_files
from coordinator.report.result import SUMMARY_VERSION, DeviceResult, Result, RoundResult, spread, summary
from coordinator.report.text_files import csv_text
from edge_sdk.errors import StoreError, UsageError

OWN_TASK = ("amp", "fm", "wlp")
"""Of the accuracies on the devices' own tasks."""
COUNTS = ("contributors", "exchanges", "bytes_up", "bytes_down", "scalars_up", "scalars_down", "device_flops")
SECONDS = ("wall_s", "virtual_s", "device_s")
ROUND_COLUMNS = (
    "round",
    "accuracy_mean",
    "accuracy_min",
    "accuracy_max",
    "accuracy_std",
    "standalone_mean",
    *OWN_TASK,
    *COUNTS,
    *SECONDS,
)
DEVICE_COLUMNS = (
    "id",
    "number",
    "board",
    "link",
    "model",
    "runtime",
    "learns",
    "samples",
    "classes",
    "class_counts",
    "accuracy",
    "standalone_accuracy",
    "bytes_up",
    "bytes_down",
    "rounds_done",
    "note",
)
ACCURACY_COLUMNS = ("round", "device", "accuracy", "local_accuracy", "standalone_accuracy")


def write_run(result: Result, resolved_toml: str, directory: str | os.PathLike[str]) -> None:
    """Write all files of a run; what was there of the same names is replaced.

    Raises UsageError where `directory` cannot be a directory, StoreError where it cannot be written.
    """
    folder = Path(directory)
    files = {
        "federation.toml": resolved_toml,
        "rounds.csv": csv_text(ROUND_COLUMNS, _round_rows(result)),
        "devices.csv": csv_text(DEVICE_COLUMNS, (_device_row(device) for device in result.devices)),
        "accuracy.csv": csv_text(ACCURACY_COLUMNS, _accuracy_rows(result)),
        "summary.json": json.dumps(summary(result), indent=2, allow_nan=False) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            text_files.replace(folder / name, text)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder}: is a file, not a folder; give --out another name") from None
    except OSError as error:
        raise StoreError(f"{folder}: cannot write the run ({error.strerror}); free or change the place") from error


def read_run(directory: str | os.PathLike[str]) -> Result:
    """The Result that write_run stored.

    Of the standalone line it knows the accuracies; its other figures stand in the run directory `standalone/`.
    Raises UsageError, in one line, where this is no run directory or a file of it is missing or does not read.
    """
    folder = Path(directory)
    whole = _read_summary(folder / "summary.json")
    rounds = _read_table(folder / "rounds.csv", ROUND_COLUMNS)
    measured = _read_table(folder / "accuracy.csv", ACCURACY_COLUMNS)
    try:
        return _result(whole, rounds, measured)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{folder}: its files do not fit together ({type(error).__name__}: {error}); run it again"
        ) from None


def _round_rows(result: Result) -> Iterable[dict[str, object]]:
    alone = {entry.round: entry for entry in result.standalone_history}
    for entry in result.history:
        federated = spread(list(result.learned(entry.accuracy).values()))
        own_task = result.own_task(entry.local_accuracy)
        standalone = alone[entry.round].accuracy if entry.round in alone else {}
        yield {
            "round": entry.round,
            **{f"accuracy_{key}": federated[key] for key in ("mean", "min", "max", "std") if federated},
            "standalone_mean": spread(list(result.learned(standalone).values())).get("mean"),
            **{key: own_task.get(key) for key in OWN_TASK},
            **{key: getattr(entry, key) for key in (*COUNTS, *SECONDS)},
        }


def _device_row(device: DeviceResult) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(device, name) for name in DEVICE_COLUMNS}
    return row | {
        "learns": int(device.learns),
        "classes": " ".join(map(str, device.classes)),
        "class_counts": " ".join(map(str, device.class_counts)),
    }


def _accuracy_rows(result: Result) -> Iterable[dict[str, object]]:
    columns = {
        "accuracy": {entry.round: entry.accuracy for entry in result.history},
        "local_accuracy": {entry.round: entry.local_accuracy for entry in result.history},
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
    accuracy, own, alone = (_by_round(measured, name) for name in ("accuracy", "local_accuracy", "standalone_accuracy"))
    return Result(
        devices=tuple(_device_from(entry) for entry in whole["per_device"]),
        history=tuple(_round_from(row, accuracy, own) for row in rounds),
        standalone_history=tuple(RoundResult(round=number, accuracy=alone[number]) for number in sorted(alone)),
        refused_devices=tuple(whole["refused_devices"]),
        warnings=tuple(whole["warnings"]),
        encoding=whole.get("encoding", {}),  # runs of before there was a choice do not say
        memory=whole.get("memory", {}),  # nor those of before it was measured
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


def _round_from(
    row: Mapping[str, str], accuracy: Mapping[int, Mapping[str, float]], own: Mapping[int, Mapping[str, float]]
) -> RoundResult:
    number = int(row["round"])
    return RoundResult(
        round=number,
        accuracy=accuracy.get(number, {}),
        local_accuracy=own.get(number, {}),
        wall_s=float(row["wall_s"]),
        virtual_s=float(row["virtual_s"]),
        device_s=float(row["device_s"]),
        **{key: int(row[key]) for key in COUNTS},
    )
