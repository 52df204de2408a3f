"""Partitions as files: what one run wrote another reads; what does not fit is refused, naming the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.fleet import fleet
from edge_sim.runs.runner import run

DEVICES = 4


def tables(pictures: Path, seed: int = 7, **partition: Any) -> dict[str, Any]:
    plain = fleets.tables(pictures, "local", DEVICES, rounds=1, seed=seed)
    plain["data"]["seed"] = 1
    plain["partition"] = partition
    return plain


def built(folder: Path, plain: dict[str, Any]) -> fleet.Fleet:
    return fleet.build_fleet(settings.parse(plain, folder / "f.toml"))


def held(found: fleet.Fleet) -> list[list[int]]:
    return [sorted(device.data.train.x.sum(axis=(1, 2)).tolist()) for device in found.devices]


@pytest.fixture
def exported(pictures: Path, tmp_path: Path) -> Path:
    """The file that a run with a Dirichlet partition leaves."""
    plain = tables(pictures, kind="dirichlet", alpha=1.0, export="made/part.json")
    run(settings.parse(plain, tmp_path / "f.toml"))
    return tmp_path / "made" / "part.json"


def test_another_run_reads_the_very_same_partition(pictures: Path, exported: Path) -> None:
    drawn = built(exported.parent, tables(pictures, kind="dirichlet", alpha=1.0))
    read = built(exported.parent, tables(pictures, seed=8, file="part.json"))
    assert held(read) == held(drawn)
    assert held(built(exported.parent, tables(pictures, seed=8, kind="dirichlet", alpha=1.0))) != held(drawn)


def test_rows_are_those_of_the_npz_file(pictures: Path, exported: Path) -> None:
    table = json.loads(exported.read_text(encoding="utf-8"))
    assert {name: type(value) for name, value in table.items()} == {
        "version": int,
        "data": str,
        "sha256": str,
        "seed": int,
        "samples": int,
        "devices": dict,
    }
    assert list(table["devices"]) == [f"device-{i:02d}" for i in range(DEVICES)]
    found = built(exported.parent, tables(pictures, file="part.json"))
    with np.load(pictures) as arrays:
        for device, rows in zip(found.devices, table["devices"].values(), strict=True):
            np.testing.assert_array_equal(device.data.train.x, arrays["x_train"][rows])
            np.testing.assert_array_equal(device.data.train.y, arrays["y_train"][rows])


def test_a_file_by_hand_needs_only_devices_and_may_leave_samples_out(
    pictures: Path, tmp_path: Path, exported: Path
) -> None:
    whole = json.loads(exported.read_text(encoding="utf-8"))["devices"]
    few = {name: rows[:5] for name, rows in whole.items()}
    (tmp_path / "few.json").write_text(json.dumps({"devices": few}), encoding="utf-8")
    assert [len(part) for part in built(tmp_path, tables(pictures, file="few.json")).parts] == [5] * DEVICES


def _public_row(table: dict[str, Any]) -> int:
    used = {row for rows in table["devices"].values() for row in rows}
    return min(set(range(240)) - used)


def _add(name: str, row: int | Callable[[dict[str, Any]], int]) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["devices"][name].append(row if isinstance(row, int) else row(table))


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.update({key: value})


def _poor(table: dict[str, Any]) -> None:
    del table["devices"]["device-00"][3:]


def _many(table: dict[str, Any]) -> None:
    table["devices"]["device-03"] += range(300, 310)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_add("device-01", 240), r"row 240 \(device-01 .*not in the data"),
        (_add("device-02", -1), r"row -1 \(device-02 .*not in the data"),
        (_many, r"rows 300, 301, 302, 303, 304 and 5 more \(device-03 .*not in the data"),
        (_add("device-03", lambda t: t["devices"]["device-01"][0]), r"row \d+ \(device-01 .*more than"),
        (_add("device-02", _public_row), r"row \d+ \(device-02 .*in the public set"),
        (
            _set("sha256", "00" * 32),
            r"other data \(pictures, data\.seed = 1\)",
        ),
        (_set("version", 2), "version 2, .* 1: upgrade"),
        (_set("devices", [[1, 2]]), r'expected \{"devices"'),
        (lambda t: t["devices"].pop("device-02"), "3 devices for the 4 .*device-02"),
        (_set("devices", {f"device-{i:02d}": "all" for i in range(4)}), "device-00: expected a list"),
        (_set("devices", {f"device-{i:02d}": [True] for i in range(4)}), "device-00: expected a list"),
        (_add("device-01", 2**70), "device-01: expected a list"),
        (_poor, r"at least 4 samples .* 3; see .*part\.json"),
    ],
)
def test_what_does_not_fit_is_refused(pictures: Path, exported: Path, change, message: str) -> None:
    table = json.loads(exported.read_text(encoding="utf-8"))
    change(table)
    exported.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        built(exported.parent, tables(pictures, file="part.json"))


def test_files_that_cannot_be_read_or_written(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"partition\.file: .*absent\.json: .*such file"):
        built(tmp_path, tables(pictures, file="absent.json"))
    (tmp_path / "torn.json").write_text('{"devices": {', encoding="utf-8")
    with pytest.raises(UsageError, match=r"torn\.json: not .* JSON"):
        built(tmp_path, tables(pictures, file="torn.json"))
    with pytest.raises(UsageError, match=r"partition\.export: .*part\.json: .*be written"):
        run(settings.parse(tables(pictures, kind="iid", export="torn.json/part.json"), tmp_path / "f.toml"))
