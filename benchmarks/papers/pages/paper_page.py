"""The page of one paper, docs/results/papers/PAPER.md: every claim with what was found, and the tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import markdown, mean_and_deviation
from benchmarks.papers.pages.figures import FIGURES
from benchmarks.papers.pages.figures import FOLDER as PICTURES
from benchmarks.papers.pages.signs import NOT_RUN, Found, found_in, reached
from benchmarks.papers.pages.verdicts import Judged, missed
from benchmarks.papers.running import cells
from benchmarks.papers.tables.kinds import Line, Paper, Setting, Table
from coordinator.config import load_toml
from coordinator.record.units import human_bytes, human_flops
from coordinator.results.figures.metrics import TARGETS
from edge_sim.studies.planned_runs import with_setting

NAMES = {
    "gm": "GM",
    "personal": "personal",
    "local_accuracy": "own test",
    "pm_v": "PM(V)",
    "pm_l": "PM(L)",
    "pm_l_sd": "deviation of PM(L)",
    "global_amp": "AMP",
    "global_wlp": "WLP",
    "fm_sd": "root of FM",
    "active_amp": "AMP of ACA",
    "active_wlp": "WLP of ACA",
    "bytes": "bytes to a target",
    "flops": "FLOPs to a target",
}
"""A figure's name on the pages."""
DEVIATION_NAME = f"{NAMES['pm_l_sd']}, here"
HEAD = """# {title}

[What the columns and verdicts mean](../papers.md). The scale is smaller than the paper's, so compare the signs of the
differences, not the values. `python -m benchmarks.papers --page` writes this page from `rows/TABLE.csv`.
"""
PICTURES_HEAD = """## Figures from these runs

By `python -m benchmarks.papers --figures`, from the runs of seed 0, with the functions of `edge-sdk report`.
"""


def paper_page(
    paper: Paper, kept: Mapping[str, Sequence[cells.Row]], found: Mapping[str, Sequence[Judged]], pictures: Path
) -> str:
    """Return the page of a paper.

    kept, found: the rows and the judged signs of each table, by its name.  pictures: the folder of the figures.
    """
    parts = [HEAD.format(title=paper.title), _missed(paper, found)]
    parts += [_table(table, kept[table.name], found[table.name]) for table in paper.tables]
    return "\n".join([*parts, *_elsewhere(paper), *_figures_of(paper.tables, pictures)])


def told(judged: Judged) -> list[str]:
    """Return a sign's cells from its figure on: what the authors report, what was found, and the corrected p value."""
    sign = judged.sign
    reported = "" if sign.reported is None else f"{sign.reported:+.2f}"
    corrected = "" if judged.corrected is None else f"{judged.corrected:.2g}"
    return [NAMES[sign.figure], reported, sign.found, corrected]


def _missed(paper: Paper, found: Mapping[str, Sequence[Judged]]) -> str:
    """Return the signs that are level or against the claim, with the reason that was found."""
    lines = [["claimed", "setting", "figure", "reported", "here", "p", "verdict", "why"]]
    for table in paper.tables:
        lines += [
            [each.sign.what, each.sign.setting, *told(each), each.says, each.sign.why or "not known"]
            for each in found[table.name]
            if missed(each)
        ]
    text = markdown(lines) if len(lines) > 1 else "None."
    return f"## Level, or against the claim, and why\n\n{text}\n"


def _elsewhere(paper: Paper) -> list[str]:
    if not paper.elsewhere:
        return []
    lines = [["claimed", "reported", "here", "why", "command"]]
    lines += [[each.what, each.reported, NOT_RUN, each.why, f"`{each.command}`"] for each in paper.elsewhere]
    return [f"## Claims without a table here\n\n{markdown(lines)}\n"]


def _table(table: Table, kept: Sequence[cells.Row], found_signs: Sequence[Judged]) -> str:
    parts = [f"## {table.title}\n", f"Reported: {table.source}\n", f"Here: {table.scale}\n"]
    parts += [f"Found beside the signs: {table.found}\n"] if table.found else []
    parts += [f"Each row again: `{cells.command(table)} --setting SETTING --method METHOD --seeds SEED --again`\n"]
    missing = sum(cells.row_of(cell, kept) is None for cell in cells.cells(table))
    parts += (
        [f"Rows that are planned but not run yet: {missing}. This runs them: `{cells.command(table)}`\n"]
        if missing
        else []
    )
    parts += [_signs(found_signs)] if found_signs else []
    for setting in table.settings:
        found = found_in(table, setting, kept)
        parts += [f"### {table.title}, {setting.name}\n", _figures(table, setting, found), ""]
        if table.targets_against and any(found.values()):
            parts += [_targets(table, setting, found), ""]
    return "\n".join(parts)


def _signs(found: Sequence[Judged]) -> str:
    """Return every claim of a table with what was found."""
    lines = [["claimed", "setting", "figure", "reported", "here", "p", "verdict"]]
    lines += [[each.sign.what, each.sign.setting, *told(each), each.says] for each in found]
    return f"{markdown(lines)}\n"


def _figures(table: Table, setting: Setting, found: Found) -> str:
    names = [NAMES[figure] for figure in table.figures]
    deviation = "pm_l" in table.figures
    reported = [figure for figure in table.figures if any(figure in told for told in setting.reported.values())]
    head = ["method", *(f"{NAMES[figure]}, reported" for figure in reported), *(f"{name}, here" for name in names)]
    more = [DEVIATION_NAME] if deviation else []
    lines = [[*head, *more, "rounds", "up, down", "device s", "seeds", "CPU s"]]
    for line in table.lines_of(setting):
        rows = found[line.name]
        figures = setting.reported.get(line.name, {})
        rounds, taking_part = _rounds_and_devices(table, setting, line)
        lines.append(
            [
                line.name,
                *(f"{figures[figure]:.2f}" if figure in figures else "" for figure in reported),
                *(_mean(_values(rows, figure)) if rows else NOT_RUN for figure in table.figures),
                *([_mean(_values(rows, cells.DEVIATION))] if deviation else []),
                str(rounds),
                ", ".join(human_bytes(_over(rows, column)) for column in cells.COSTS[:2] if _values(rows, column)),
                f"{_over(rows, 'device_s_per_round') / taking_part:.3g}" if _values(rows, "device_s_per_round") else "",
                ", ".join(row["seed"] for row in rows),
                f"{_over(rows, 'cpu_s'):.0f}" if rows else "",
            ]
        )
    return markdown(lines)


def _rounds_and_devices(table: Table, setting: Setting, line: Line) -> tuple[int, int]:
    """Return the number of rounds, and of the devices that take part in each."""
    federation = with_setting(load_toml(table.file), {**setting.values, **line.values})["federation"]
    return federation["rounds"], federation.get("participants") or federation["devices"]


def _over(rows: Sequence[cells.Row], column: str) -> float:
    """Return the mean of a column over the seeds that have it."""
    return statistics.fmean(_values(rows, column))


def _values(rows: Sequence[cells.Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row.get(column)]


def _targets(table: Table, setting: Setting, found: Found) -> str:
    """Return what each line spent until the mean own-test accuracy first reached each target, under the first seed."""
    against = _of_first_seed(found[table.targets_against])
    lines = [
        [
            "target",
            "method",
            "round",
            "bytes of a device",
            "FLOPs",
            f"times fewer bytes than {table.targets_against}",
            "times fewer FLOPs",
        ]
    ]
    for target in (f"{each:g}" for each in TARGETS):
        for line in table.lines_of(setting):
            spent, base = _of_first_seed(found[line.name]).get(target), against.get(target)
            if spent is None:
                continue
            ratios = [f"{base[of] / spent[of]:.1f}" if base else "not reached there" for of in ("bytes", "flops")]
            costs = [human_bytes(spent["bytes"]), human_flops(spent["flops"])]
            lines.append([f"{100 * float(target):.0f} %", line.name, f"{spent['round']:.0f}", *costs, *ratios])
    return markdown(lines)


def _of_first_seed(rows: Sequence[cells.Row]) -> dict[str, dict[str, float]]:
    return reached(rows[0]) if rows else {}


def _figures_of(tables: Sequence[Table], pictures: Path) -> list[str]:
    """Return the papers' figures that were drawn, and the names of the others."""
    names = {table.name for table in tables}
    lines, missing = [["figure", "shows", "pictures"]], []
    for figure in FIGURES:
        if figure.table not in names:
            continue
        drawn = [name for name in figure.pictures if (pictures / f"{name}.png").exists()]
        missing += [name for name in figure.pictures if name not in drawn]
        links = [f"[{name.removeprefix(figure.name).strip('-') or name}]({PICTURES}/{name}.png)" for name in drawn]
        if links:
            lines.append([figure.name, figure.shows, ", ".join(links)])
    if len(lines) == 1 and not missing:
        return []
    text = markdown(lines) if len(lines) > 1 else "None is drawn yet."
    left = f"\n\nTheir runs are missing: {', '.join(missing)}." if missing else ""
    return [f"{PICTURES_HEAD}\n{text}{left}\n"]


def _mean(values: Sequence[float]) -> str:
    """Return `mean ± deviation` in per cent, or the one value; empty where the method has no such figure."""
    if len(values) > 1:
        return mean_and_deviation(values)
    return f"{100 * values[0]:.1f}" if values else ""
