"""Partitions as files, so that other runs and other programs can use the same partition.

    {"version": 1, "data": NAME, "sha256": HEX, "seed": S, "samples": N, "devices": {"device-00": [ROW, ...], ...}}

A row counts the training samples as the source gives them (of an npz file: the rows of x_train).  A file written by
hand needs only `devices`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError
from edge_sim.data.datasets import Dataset
from edge_sim.data.partition import check_least

VERSION = 1
SHOWN = 5
"""Largest number of wrong rows that an error names."""


def write_partition(path: Path, dataset: Dataset, ids: Sequence[str], parts: Sequence[Ints]) -> None:
    """Write a partition to a file; parts: indices of the private samples.  Raises UsageError."""
    table = {
        "version": VERSION,
        "data": dataset.name,
        "sha256": dataset.sha256,
        "seed": dataset.seed,
        "samples": len(dataset.private),
        "devices": {name: dataset.rows[part].tolist() for name, part in zip(ids, parts, strict=True)},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"partition.export: {path}: cannot be written: {error}") from None


def read_partition(path: Path, dataset: Dataset, ids: Sequence[str], least: int) -> list[Ints]:
    """Return each device's ascending indices of private samples.  Samples that the file leaves out are not used.

    Raises UsageError where the file was made for other data or devices, or names rows that are not there, are in the
    public set, or belong to two devices; the message names the rows.
    """
    table = _table(path)
    if table.get("sha256") not in (None, dataset.sha256):
        raise UsageError(
            f"{path}: made for other data ({table.get('data', 'unnamed')}, data.seed = {table.get('seed', 'unknown')}) "
            f"than {dataset.name} with data.seed = {dataset.seed}: its rows would be other samples here"
        )
    devices = table["devices"]
    if set(devices) != set(ids):
        odd = sorted(set(devices) ^ set(ids))
        raise UsageError(
            f"{path}: holds {len(devices)} devices for the {len(ids)} of this federation; "
            f"{', '.join(odd[:SHOWN])} {'is' if len(odd) == 1 else 'are'} in one of them only"
        )
    owned = {name: _rows(path, name, devices[name]) for name in ids}
    place = _places(path, dataset, owned)
    parts = [place[owned[name]] for name in ids]
    check_least(parts, least, f"see {path}")
    return [np.sort(part) for part in parts]


def _table(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"partition.file: {path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"partition.file: {path}: not a readable JSON file: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("devices"), dict):
        raise UsageError(f'{path}: expected {{"devices": {{"device-00": [row, ...], ...}}}}')
    if table.get("version", VERSION) != VERSION:
        raise UsageError(f"{path}: version {table['version']}, this side reads {VERSION}: upgrade it")
    return table


def _rows(path: Path, name: str, plain: Any) -> Ints:
    if not isinstance(plain, list) or any(type(row) is not int or abs(row) >= 2**62 for row in plain):
        raise UsageError(f"{path}: {name}: expected a list of row numbers")
    return np.array(plain, np.int64)


def _places(path: Path, dataset: Dataset, owned: dict[str, Ints]) -> Ints:
    """Return a map from row to index of the private sample, after checking every row that the file names."""
    everything = np.concatenate([*owned.values(), np.zeros(0, np.int64)])
    _refuse(path, owned, everything[(everything < 0) | (everything >= dataset.source_samples)], "not in the data")
    names, counts = np.unique(everything, return_counts=True)
    _refuse(path, owned, names[counts > 1], "named more than once")
    place = np.full(dataset.source_samples, -1, np.int64)
    place[dataset.rows] = np.arange(len(dataset.rows))
    _refuse(path, owned, names[place[names] < 0], "in the public set or left out by data.train_samples")
    return place


def _refuse(path: Path, owned: dict[str, Ints], rows: Ints, why: str) -> None:
    """Raise UsageError that names some of these rows, and a device that has them, if there are any."""
    if not len(rows):
        return
    holder = next(name for name, own in owned.items() if np.isin(rows, own).any())
    shown = ", ".join(str(row) for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    raise UsageError(
        f"{path}: {'row' if len(rows) == 1 else 'rows'} {shown}{more} ({holder} has some): {why}; "
        "use the [data] section that the file was made with"
    )
