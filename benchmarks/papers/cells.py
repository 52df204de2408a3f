"""Cells: one setting, method and seed of a table.  A finished cell is a row of the table's CSV file."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edge_sim
from benchmarks.papers.tables import Line, Setting, Table
from coordinator.config import load_toml
from coordinator.record.result import Result
from coordinator.report.compare import FIGURES, Trial
from coordinator.report.text_files import csv_text
from coordinator.serving.outcome import versions
from edge_sdk.errors import RunFailed, StoreError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.studies.planned_runs import trial_config, with_setting

DATA = Path(__file__).parents[2] / "data"
"""The folder of npz files, where EDGE_DATA names no other; git ignores it."""
ACCURACIES = {
    "gm": "gm",
    "personal": "mean",
    **{
        name: name
        for name in (
            "local_accuracy",
            "pm_v",
            "pm_l",
            "amp",
            "wlp",
            "global_amp",
            "global_wlp",
            "active_amp",
            "active_wlp",
        )
    },
}
"""The accuracies of a row: its column -> name in a comparison (docs/reference/reports.md)."""
COSTS = ("up_per_device_round", "down_per_device_round", "device_flops_per_round", "steps_per_device")
COLUMNS = (
    "setting",
    "method",
    "seed",
    *ACCURACIES,
    *COSTS,
    "cpu_s",
    "settings",
    "versions",
    "command",
)
Row = dict[str, str]
"""A row as it is read, by column; a figure that is not known is empty."""


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    table: Table
    setting: Setting
    line: Line
    seed: int

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.table.name} {self.setting.name} {self.line.name} seed {self.seed}"

    @property
    def values(self) -> dict[str, Any]:
        """What differs from the table's file."""
        return {**self.setting.values, **self.line.values}

    def config(self) -> Config:
        """Return the federation.  Raises UsageError."""
        overrides = []
        tables = load_toml(self.table.file)
        if "path" in tables.get("data", {}):
            folder = Path(os.environ.get("EDGE_DATA", DATA)).absolute()
            overrides = [f"data.path={folder / Path(tables['data']['path']).name}"]
        whole = settings.load_config(self.table.file, overrides)
        return trial_config(whole, self.line.runs, self.seed, self.values)

    def digest(self) -> str:
        """Return 12 hexadecimal digits that change with the cell's settings, not with where its data lie."""
        tables = copy.deepcopy(with_setting(load_toml(self.table.file), self.values))
        tables["method"] = tables.get("method", {}).get(self.line.runs, {})
        tables["federation"] = {**tables["federation"], "method": self.line.runs, "name": "", "seed": self.seed}
        tables["data"] = {**tables["data"], "path": Path(tables["data"].get("path", "")).name}
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def command(self) -> str:
        """The command that runs this cell alone."""
        return f"{command(self.table, self.setting, self.line)} --seeds {self.seed}"


def command(table: Table, setting: Setting, line: Line) -> str:
    """Return the command that runs a line of a table under all seeds."""
    return f"python -m benchmarks.papers --table {table.name} --setting {setting.name} --method {line.name}"


def cells(table: Table, seeds: Sequence[int]) -> list[Cell]:
    """Return the cells of a table, seed by seed, so that an interrupted setting is complete for its finished seeds."""
    return [Cell(table, setting, line, seed) for setting in table.settings for seed in seeds for line in table.lines]


def rows(table: Table, folder: Path) -> list[Row]:
    """Read the rows of a table's CSV file; none where it is not there."""
    path = folder / f"{table.name}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_of(cell: Cell, found: Iterable[Row]) -> Row | None:
    """Return the newest row of a cell among those of its table; None where it was not run with these settings."""
    wanted = {"setting": cell.setting.name, "method": cell.line.name, "seed": str(cell.seed), "settings": cell.digest()}
    return next((row for row in reversed([*found]) if wanted.items() <= row.items()), None)


def run_missing(wanted: Sequence[Cell], folder: Path, say: Callable[[str], None], done: Callable[[], None]) -> int:
    """Run the cells that have no row, add each row at once, and return the number of cells that failed.

    done: called after each new row.  Raises StoreError where a row cannot be written.
    """
    failed = 0
    for cell in wanted:
        if row_of(cell, rows(cell.table, folder)):
            say(f"{cell.name}: skipped, its row stands")
            continue
        say(f"{cell.name}: runs")
        try:
            row = measured(cell)
        except Exception as error:  # noqa: BLE001  # whatever ended one cell, the others go on
            failed += 1
            say(f"{cell.name}: failed: {type(error).__name__}: {error}")
            continue
        _add(row, folder / f"{cell.table.name}.csv")
        say(f"{cell.name}: done, {row['cpu_s']} s of CPU")
        done()
    return failed


def measured(cell: Cell) -> dict[str, object]:
    """Run a cell and return its row.  Raises EdgeError."""
    digest, before = cell.digest(), _cpu_s()
    result: Result = edge_sim.run(cell.config())
    spent = _cpu_s() - before
    if not result.completed:
        raise RunFailed(result.reason)
    trial = Trial(cell.seed, result)
    return {
        "setting": cell.setting.name,
        "method": cell.line.name,
        "seed": cell.seed,
        **{column: trial.accuracy(name) for column, name in ACCURACIES.items()},
        **{name: FIGURES[name](trial) for name in COSTS},
        "cpu_s": round(spent, 1),
        "settings": digest,
        "versions": "; ".join(f"{package} {version}" for package, version in versions().items()),
        "command": cell.command,
    }


def _cpu_s() -> float:
    """Seconds of CPU of this process and its finished children."""
    return sum(os.times()[:4])


def _add(row: dict[str, object], path: Path) -> None:
    """Append a row in one write, under a head where the file is new.  Raises StoreError."""
    text = csv_text(COLUMNS, [row])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write((text if not file.tell() else text.split("\n", maxsplit=1)[1]).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot write the row ({error.strerror}); free or change the place") from error
