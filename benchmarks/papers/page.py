"""The page docs/results/papers.md: what authors report, what stands here, and whether the signs agree."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.papers import cells
from benchmarks.papers.tables import SEEDS, Claim, Line, Setting, Table
from benchmarks.points import markdown, mean_and_deviation

NOT_RUN = "not run yet"
NAMES = {
    "gm": "GM",
    "personal": "personal",
    "local_accuracy": "own test",
    "pm_v": "PM(V)",
    "pm_l": "PM(L)",
    "global_amp": "AMP",
    "global_wlp": "WLP",
    "active_amp": "AMP of ACA",
    "active_wlp": "WLP of ACA",
}
"""A figure's name on the page."""
HEAD = """# The papers' tables

Written by `python -m benchmarks.papers`; nothing here is typed by hand. What the authors report stands beside what this
implementation gives at a smaller scale, which each table states, so the values are not to be compared: the signs are.
All are in per cent: *GM*: the global model on the shared test. *Personal*: the mean of the devices' own models there.
*Own test*: the same on each device's own test part. The rest: [reports](../reference/reports.md).

A sign is read from seeds {seeds}, as the mean of the differences seed by seed; before all are there, it is *{not_run}*.
Rows, with bytes, FLOPs, CPU seconds and versions, are in `papers/TABLE.csv`; the files of the tables, and how to get
their data, are in [benchmarks/papers](../../benchmarks/papers/README.md).
"""

Found = Mapping[str, Sequence[cells.Row]]
"""The rows of each line, one for each finished seed in the order of the seeds."""


def page(tables: Sequence[Table], folder: Path) -> str:
    """Return the whole page from the CSV files of a folder."""
    head = HEAD.format(seeds=", ".join(map(str, SEEDS)), not_run=NOT_RUN)
    return "\n".join([head, *(_table(table, folder) for table in tables)])


def sign(claim: Claim, figure: str, found: Found) -> str:
    """Return whether a claimed sign agrees; not before every seed of both lines has the figure."""
    better, worse = (_values(found[line], figure) for line in (claim.better, claim.worse))
    if len(better) < len(SEEDS) or len(worse) < len(SEEDS):
        return NOT_RUN
    gains = [high - low for high, low in zip(better, worse, strict=True)]
    return f"{'yes' if statistics.fmean(gains) > 0 else 'no'}, {mean_and_deviation(gains, sign=True)}"


def _table(table: Table, folder: Path) -> str:
    kept = cells.rows(table, folder)
    parts = [f"## {table.title}\n", f"Reported: {table.source}\n", f"Here: {table.scale}\n"]
    for setting in table.settings:
        found = {line.name: _rows(table, setting, line, kept) for line in table.lines}
        parts += [f"### {setting.name}\n", _figures(table, setting, found), "", _claims(table, setting, found), ""]
    return "\n".join(parts)


def _rows(table: Table, setting: Setting, line: Line, kept: Sequence[cells.Row]) -> list[cells.Row]:
    rows = (cells.row_of(cells.Cell(table, setting, line, seed), kept) for seed in SEEDS)
    return [row for row in rows if row is not None]


def _figures(table: Table, setting: Setting, found: Found) -> str:
    names = [NAMES[figure] for figure in table.figures]
    head = ["method", *(f"{name}, reported" for name in names), *(f"{name}, here" for name in names)]
    lines = [[*head, "seeds", "CPU s", "command"]]
    for line in table.lines:
        rows = found[line.name]
        reported = setting.reported.get(line.name, {})
        spent = f"{statistics.fmean(float(row['cpu_s']) for row in rows):.0f}" if rows else ""
        lines.append(
            [
                line.name,
                *(f"{reported[figure]:.2f}" if figure in reported else "" for figure in table.figures),
                *(_mean(_values(rows, figure)) if rows else NOT_RUN for figure in table.figures),
                ", ".join(row["seed"] for row in rows),
                spent,
                f"`{cells.command(table, setting, line)}`",
            ]
        )
    return markdown(lines)


def _claims(table: Table, setting: Setting, found: Found) -> str:
    lines = [["claimed", "figure", "reported", "the sign agrees here"]]
    for claim in table.claims:
        better, worse = (setting.reported.get(line, {}) for line in (claim.better, claim.worse))
        for figure in claim.figures:
            told = f"{better[figure] - worse[figure]:+.2f}" if figure in better and figure in worse else ""
            lines.append([f"{claim.better} over {claim.worse}", NAMES[figure], told, sign(claim, figure, found)])
    return markdown(lines)


def _values(rows: Sequence[cells.Row], figure: str) -> list[float]:
    return [float(row[figure]) for row in rows if row[figure]]


def _mean(values: Sequence[float]) -> str:
    """Return `mean ± deviation` in per cent, or the one value; empty where the method has no such figure."""
    if len(values) > 1:
        return mean_and_deviation(values)
    return f"{100 * values[0]:.1f}" if values else ""
