"""Cells: one setting, method and seed of a table.  A finished cell is a row of the table's CSV file."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edge_sim
from benchmarks.papers.running import csv_lines
from benchmarks.papers.tables.kinds import SEEDS, Line, Setting, Table
from coordinator.config import load_toml, to_toml
from coordinator.results.comparison.compare import Trial
from coordinator.results.figures.metrics import TARGETS
from coordinator.results.figures.outcome import versions
from coordinator.results.figures.result import Result
from coordinator.results.report import text_files
from coordinator.results.report.run_files import read_run, write_run
from edge_sdk.errors import RunFailed, StoreError
from edge_sim.bench import vibration
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.studies.planned_runs import trial_config, with_setting

DATA = Path(__file__).parents[3] / "data"
"""The folder of npz files, where EDGE_DATA names no other; git ignores it."""
RUNS = Path(__file__).parents[3] / "runs" / "papers"
"""The run folders of cells, for pictures; git ignores it."""
CODE = ("edge_sdk", "coordinator", "edge_sim", "benchmarks/papers")
"""The folders whose code a row depends on."""
DIGEST = "cell.txt"
"""The file of a run folder that holds its cell's digest."""
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
            "global_fm",
        )
    },
}
"""The accuracies of a row: its column -> name in a comparison (docs/reference/reports.md)."""
DEVIATION = "pm_l_sd"
"""The column of the standard deviation of PM(L) over devices: FedNH's measure of fairness."""
COSTS = (
    "up_per_device_round",
    "down_per_device_round",
    "device_flops_per_round",
    "steps_per_device",
    "device_s_per_round",
)
REACHED = "own_test_reached"
"""The column of what was spent when the mean accuracy on devices' own test parts first reached each target: JSON,
target -> round, bytes of a device, FLOPs of all devices."""
REACHED_COSTS = ("round", "bytes", "flops")
COLUMNS = (
    "setting",
    "method",
    "seed",
    *ACCURACIES,
    DEVIATION,
    *COSTS,
    REACHED,
    "cpu_s",
    "settings",
    "versions",
    "command",
)
LATER_COLUMNS = (DEVIATION, "device_s_per_round", REACHED, "global_fm")
"""Columns that older files do not have."""
SAME_CELL = ("setting", "method", "seed", "settings")
"""The columns that rows of one cell with the same settings share."""
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

    @property
    def data(self) -> Path | None:
        """The file of its data, or None where it needs none.  The one that is made here is made by measured()."""
        path = load_toml(self.table.file).get("data", {}).get("path")
        if path is None:
            return None
        name = Path(path).name
        return (RUNS if name == vibration.NAME else Path(os.environ.get("EDGE_DATA", DATA))).absolute() / name

    def config(self) -> Config:
        """Return the federation.  Raises UsageError."""
        data = self.data
        whole = settings.load_config(self.table.file, [] if data is None else [f"data.path={data}"])
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
        return _cell_command(self.table, self.setting.name, self.line.name, str(self.seed))


def command(table: Table) -> str:
    """Return the command that runs a table."""
    return f"python -m benchmarks.papers --table {table.name}"


def _cell_command(table: Table, setting: str, method: str, seed: str) -> str:
    return f"{command(table)} --setting {setting} --method {method} --seeds {seed}"


def cells(table: Table, seeds: Sequence[int] | None = None) -> list[Cell]:
    """Return the cells of a table, seed by seed, so that an interrupted setting is complete for its finished seeds.

    seeds: of every line; by default those that are planned.
    """
    return [
        Cell(table, setting, line, seed)
        for setting in table.settings
        for seed in (SEEDS if seeds is None else seeds)
        for line in table.lines_of(setting)
        if seeds is not None or seed in table.seeds_of(setting, line)
    ]


def in_order(wanted: Iterable[Cell]) -> list[Cell]:
    """Return cells in the order in which they are run.

    First those of the claims that come first, then the others; of both the cheapest first.
    """
    return sorted(wanted, key=_rank)


def _rank(cell: Cell) -> tuple[bool, float]:
    claims = cell.table.claims_of(cell.setting, cell.line)
    first = any(claim.first and cell.seed in claim.seeds for claim in claims)
    return not first, cell.setting.cost_s * cell.line.cost


def estimate(cell: Cell, found: Sequence[Row]) -> float:
    """Return the seconds of CPU that a cell will take: the mean of its line's rows in the setting, or an estimate."""
    alike = [float(row["cpu_s"]) for row in found if _names(cell).items() <= row.items()]
    return statistics.fmean(alike) if alike else cell.setting.cost_s * cell.line.cost


def rows(table: Table, folder: Path) -> list[Row]:
    """Read the rows of a table's CSV file; none where it is not there.

    Raises UsageError, with the line, where it is damaged: a row that is cut must not pass for a finished cell.
    """
    path = folder / f"{table.name}.csv"
    lines = csv_lines.read(path)
    if lines is None:
        return []
    _, columns = next(lines, (csv_lines.HEADER, []))
    unknown = [column for column in columns if column not in COLUMNS]
    missing = [column for column in COLUMNS if column not in (*columns, *LATER_COLUMNS)]
    if unknown or missing or len(columns) > len({*columns}):
        found = f"no column {missing[0]}" if missing else f"a column {unknown[0]!r}" if unknown else "a column twice"
        raise csv_lines.damaged(path, csv_lines.HEADER, found)
    kept = []
    for line, values in lines:
        if len(values) != len(columns):
            raise csv_lines.damaged(path, line, f"{len(values)} values for {len(columns)} columns")
        row = dict(zip(columns, values, strict=True))
        if fault := next(_faults(row, table), ""):
            raise csv_lines.damaged(path, line, fault)
        kept.append(row)
    return kept


def _faults(row: Row, table: Table) -> Iterator[str]:
    """Name what is wrong with a row that has a value for each column."""
    for column in (*ACCURACIES, DEVIATION, *COSTS, "cpu_s"):
        text = row.get(column, "")
        if not _is_number(text) if text else column == "cpu_s":
            yield f"{column} is {text!r}, not a number"
    if not row["seed"].isdecimal():
        yield f"seed is {row['seed']!r}, not a whole number"
    if row.get(REACHED) and not _tells_costs(row[REACHED]):
        yield f"{REACHED} is not JSON of round, bytes and flops by target"
    if not re.fullmatch("[0-9a-f]{12}", row["settings"]):
        yield f"settings is {row['settings']!r}, not 12 hexadecimal digits"
    if row["command"] != _cell_command(table, row["setting"], row["method"], row["seed"]):
        yield "the command is not that of its cell"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _tells_costs(text: str) -> bool:
    """Whether this is what reached() returns, as JSON."""
    try:
        return all(math.isfinite(spent[of]) for spent in json.loads(text).values() for of in REACHED_COSTS)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


def row_of(cell: Cell, found: Iterable[Row]) -> Row | None:
    """Return the newest row of a cell among those of its table, or None where it was not run with these settings."""
    wanted = {**_names(cell), "seed": str(cell.seed), "settings": cell.digest()}
    return next((row for row in reversed([*found]) if wanted.items() <= row.items()), None)


def _names(cell: Cell) -> Row:
    return {"setting": cell.setting.name, "method": cell.line.name}


def run_missing(
    wanted: Sequence[Cell],
    folder: Path,
    runs: Path,
    say: Callable[[str], None],
    done: Callable[[], None],
    *,
    again: bool = False,
) -> int:
    """Run the cells that have no row, add each row at once, and return the number of cells that failed.

    runs: where each cell keeps its run folder.  done: called after each new row.  again: run all, replace rows that
    stand, and tell whether their accuracies are the same.  Raises StoreError where a row cannot be written, UsageError
    where rows are damaged.
    """
    failed = 0
    for cell in wanted:
        before = row_of(cell, rows(cell.table, folder))
        if before and not again:
            say(f"{cell.name}: skipped, its row stands")
            continue
        say(f"{cell.name}: runs")
        try:
            row = measured(cell, runs)
        except Exception as error:  # noqa: BLE001  # whatever ended one cell, the others continue
            failed += 1
            say(f"{cell.name}: failed: {type(error).__name__}: {error}")
            continue
        _keep(row, rows(cell.table, folder), folder / f"{cell.table.name}.csv")
        say(f"{cell.name}: done, {row['cpu_s']} s of CPU")
        if before:
            say(f"{cell.name}: {_compared(before, row)}")
        done()
    return failed


def _compared(before: Row, row: Mapping[str, object]) -> str:
    """Return whether a cell that was run again has the accuracies that it had."""
    pairs = ((column, before[column], _text(row[column])) for column in ACCURACIES)
    others = [f"{column} {now or 'none'} (was {was or 'none'})" for column, was, now in pairs if was != now]
    if not others:
        return "each accuracy is the same as before"
    alike = "only the same versions on processors with the same instruction set repeat each bit"
    return f"other accuracies than before: {', '.join(others)}; {alike}"


def _text(value: object) -> str:
    """Return a value as it stands in a CSV file."""
    return "" if value is None else str(value)


def run_folder(cell: Cell, runs: Path) -> Path:
    """Return the folder of a cell's run."""
    return runs / cell.table.name / cell.setting.name / cell.line.name / f"seed-{cell.seed}"


def kept_run(cell: Cell, runs: Path) -> Result | None:
    """Read the run of a cell, or None where it was not kept, or had other settings.  Raises UsageError."""
    folder = run_folder(cell, runs)
    told = folder / DIGEST
    if not told.exists() or told.read_text(encoding="utf-8").strip() != cell.digest():
        return None
    return read_run(folder)


def measured(cell: Cell, runs: Path) -> dict[str, object]:
    """Run a cell, keep its run folder, and return its row.  Raises EdgeError."""
    if cell.data is not None and cell.data.name == vibration.NAME:
        vibration.make(cell.data)
    config, digest, before = cell.config(), cell.digest(), _cpu_s()
    result: Result = edge_sim.run(config)
    spent = _cpu_s() - before
    if not result.completed:
        raise RunFailed(result.reason)
    kept = run_folder(cell, runs)
    write_run(result, to_toml(config.tables), kept)
    text_files.replace_file(kept / DIGEST, f"{digest}\n")
    trial = Trial(cell.seed, result)
    return {
        "setting": cell.setting.name,
        "method": cell.line.name,
        "seed": cell.seed,
        **{column: trial.accuracy(name) for column, name in ACCURACIES.items()},
        DEVIATION: _deviation(result),
        **{name: trial.cost(name) for name in COSTS},
        REACHED: json.dumps(reached(result), separators=(",", ":")),
        "cpu_s": round(spent, 1),
        "settings": digest,
        "versions": "; ".join(
            f"{name} {version}" for name, version in {**versions(), **code_version(), **_instruction_set()}.items()
        ),
        "command": cell.command,
    }


def reached(result: Result) -> dict[str, dict[str, float]]:
    """Return what was spent by the first measured round whose mean accuracy on own test parts reached each target.

    Bytes are those of a device, sent and received; FLOPs are those of all devices.
    """
    found: dict[str, dict[str, float]] = {}
    spent_bytes = flops = 0
    for entry in result.history:
        spent_bytes += entry.bytes_up + entry.bytes_down
        flops += entry.device_flops
        own = result.learned(entry.local_accuracy).values()
        for target in TARGETS if own else ():
            if statistics.fmean(own) >= target:
                costs = (entry.round, spent_bytes / len(result.devices), flops)
                found.setdefault(f"{target:g}", dict(zip(REACHED_COSTS, costs, strict=True)))
    return found


def _deviation(result: Result) -> float | None:
    last = next((entry.pm_l for entry in reversed(result.history) if entry.pm_l), {})
    values = result.learned(last).values()
    return statistics.pstdev(values) if values else None


def code_version(folder: Path = Path(__file__).parents[3]) -> dict[str, str]:
    """Return the commit that gave a row, and `changed` where the code differs from it; nothing outside a checkout."""
    git = ("git", "-C", str(folder))
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        code = [*git, "status", "--porcelain", "--untracked-files=no", "--", *(f":/{each}" for each in CODE)]
        changed = subprocess.run(code, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit.stdout.strip() + (" changed" if changed.stdout else "")}


def _instruction_set() -> dict[str, str]:
    """The instruction set that torch's kernels use here, on which last bits depend, or empty without torch."""
    try:
        from torch.backends.cpu import get_cpu_capability
    except ImportError:
        return {}
    return {"cpu": get_cpu_capability()}


def _cpu_s() -> float:
    """Seconds of CPU of this process and its finished children."""
    return sum(os.times()[:4])


def _keep(row: dict[str, object], found: Sequence[Row], path: Path) -> None:
    """Write a table's rows with this one, in the place of that of its cell and settings.  Raises StoreError."""
    lines: list[Mapping[str, object]] = [*found, row]
    kept = {tuple(str(each[column]) for column in SAME_CELL): each for each in lines}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.replace_file(path, text_files.csv_text(COLUMNS, kept.values()))
    except OSError as error:
        raise StoreError(f"{path}: cannot write the row ({error.strerror}); free or change the place") from error
