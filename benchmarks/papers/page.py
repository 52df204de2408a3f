"""The page docs/results/papers.md: what authors report, what stands here, and whether the signs agree."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import markdown, mean_and_deviation
from benchmarks.papers import cells
from benchmarks.papers.figures import FIGURES
from benchmarks.papers.figures import FOLDER as PICTURES
from benchmarks.papers.kinds import SEEDS, Line, Setting, Table
from benchmarks.papers.signs import (
    HOW_SHOWN,
    MISSED,
    NOT_RUN,
    UNDECIDED,
    Found,
    Sign,
    found_in,
    how_shown,
    signs,
    why_missed,
)
from coordinator.config import load_toml
from coordinator.record.units import human_bytes, human_flops
from coordinator.results.figures.metrics import TARGETS
from edge_sim.studies.planned_runs import with_setting

HOUR_S = 3600
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
DEVIATION_NAME = "deviation of PM(L), here"
HEAD = """# The papers' tables

What the authors report beside what this implementation gives at a smaller scale, which each table states. So values are
not to be compared: the signs are. `python -m benchmarks.papers` writes this page from the rows of `papers/TABLE.csv`;
what stands under *reported* is copied from the papers.

A sign is claimed where the authors' text or tables put one method above another. What their own figures deny is not
counted; what they show on other data is. Its difference here is the mean over the seeds that were run: {seeds} for the
pairs that a paper is about, one seed for the others. It is *shown in every seed*, or *in the mean*, where the mean is
above 0 and more seeds agree than disagree; the deviation that stands beside says how far to trust it. A sign of one
seed is *less than seeds differ by* where it is within the largest deviation of such differences in its table: it says
little, shown or not.

A line of a table is the mean over the seeds that stand in it. So lines with other seeds are not to be compared by eye;
the signs compare seed by seed, over the seeds that both lines have.

All accuracies are in per cent:

- *GM*: the global model on the test that all share; *personal*: the devices' own models there, on average;
- *own test*: the devices' own models, each on its own test part;
- *PM(V)*, *PM(L)* (FedNH): as personal, but for each device every class that it holds weighs alike (V), or as its share
  of the device's samples (L); *deviation of PM(L)*: over the devices, in points;
- *AMP*, *WLP* (FedKF): the global model on the devices' own test parts, the mean and the worst device. The global model
  is the mean of the newest upload of every device, taking part or not (*OCA*, all clients' aggregation; lines with
  `+slots`, and `fedkf`), or of the round's devices alone (*ACA*, active clients' aggregation). *FM* in its figure is
  the deviation of the accuracy over the devices: low is fair.

*Up, down*: bytes of a device in a round, repetitions included: a device that needs more than 5 s (`retry_s`) for its
answer is asked again in its first rounds. When the rows of the other tables than FedHKD's, FedNH's table 1 and FedSSA's
targets were run, it was asked again in every round, and an upload that crossed the question was sent twice: bytes, down
more than up, are larger by that where *device s* is near 5 or more. *Device s*: seconds of computing of a device that
takes part in a round, by the profile of a Raspberry Pi 4. *Rounds*: how many of them; methods that exchange after each
step have more.

Rows of `fednh` in FedNH's own tables (nets `fednh-cnn` and `cnn`) were run before 2026-11-26: then the cosine head took
the last ReLU out of the net. Those of the vibration signal were run with it.

Any row again: the command at its table, with data as [benchmarks/papers](../../benchmarks/papers/README.md) says.
Accuracies repeat bit for bit on processors with the same instruction set; others add in another order, which moves some
by some tenths of a point. From all of it: [which method for which fleet](choose-a-method.md).
"""
PICTURES_HEAD = """## The papers' figures from these runs

By `python -m benchmarks.papers --figures`, from the runs of seed 0, with the functions of `edge-sdk report`. FedNH's
figures 1, 2 and 5 are drawn by [examples/spiral](../../examples/spiral/README.md); figure 4 is the lines
fednh-rho-X.
"""


def page(tables: Sequence[Table], folder: Path) -> str:
    """Return the whole page from the CSV files of a folder."""
    kept = {table.name: cells.rows(table, folder) for table in tables}
    found = {table.name: signs(table, kept[table.name]) for table in tables}
    parts = [HEAD.format(seeds=", ".join(map(str, SEEDS))), _counted(tables, found), _missed(tables, found)]
    parts += [_table(table, kept[table.name], found[table.name]) for table in tables]
    return "\n".join([*parts, _figures_of(tables, folder), _spent(tables, kept)])


def _counted(tables: Sequence[Table], found: Mapping[str, Sequence[Sign]]) -> str:
    """Return how many claims of each table were shown, and under how many seeds."""
    lines = [["table", "claimed", *HOW_SHOWN, UNDECIDED, MISSED, NOT_RUN]]
    total = Counter[str]()
    for table in tables:
        counts = Counter(how_shown(sign, found[table.name]) for sign in found[table.name])
        total += counts
        lines.append([_link(table), *_numbers(counts)])
    lines.append(["all", *_numbers(total)])
    return f"## Signs claimed and shown\n\n{markdown(lines)}\n"


def _numbers(counts: Counter[str]) -> list[str]:
    kinds = (*HOW_SHOWN, UNDECIDED, MISSED, NOT_RUN)
    return [str(counts.total()), *(str(counts[kind] or "") for kind in kinds)]


def _missed(tables: Sequence[Table], found: Mapping[str, Sequence[Sign]]) -> str:
    """Return the claims that are not shown, with the reason that was found."""
    lines = [["table", "setting", "claimed", "figure", "reported", "here", "why"]]
    for table in tables:
        lines += [
            [_link(table), sign.setting, *_told(sign), why_missed(sign, found[table.name])]
            for sign in found[table.name]
            if sign.verdict == MISSED
        ]
    text = markdown(lines) if len(lines) > 1 else "None."
    return f"## Signs not shown, and why\n\n{text}\n"


def _told(sign: Sign) -> list[str]:
    reported = "" if sign.reported is None else f"{sign.reported:+.2f}"
    return [sign.what, NAMES[sign.figure], reported, sign.found]


def _signs(found: Sequence[Sign]) -> str:
    """Return every claim of a table with what was found."""
    lines = [["claimed", "setting", "figure", "reported", "here", "sign"]]
    for sign in found:
        what, *rest = _told(sign)
        lines.append([what, sign.setting, *rest, how_shown(sign, found)])
    return f"{markdown(lines)}\n"


def _link(table: Table) -> str:
    return f"[{table.title}](#{_anchor(table.title)})"


def _spent(tables: Sequence[Table], kept: dict[str, list[cells.Row]]) -> str:
    lines, total, rest = [["table", "cells with a row", "cells", "CPU hours", "still to run, estimated"]], 0.0, 0.0
    for table in tables:
        rows, planned = kept[table.name], cells.cells(table)
        spent = sum(float(row["cpu_s"]) for row in rows) / HOUR_S
        missing = [cell for cell in planned if cells.row_of(cell, rows) is None]
        ahead = sum(cells.estimate(cell, rows) for cell in missing) / HOUR_S
        total, rest = total + spent, rest + ahead
        lines.append([table.name, str(len(planned) - len(missing)), str(len(planned)), f"{spent:.2f}", f"{ahead:.2f}"])
    lines.append(["all", "", "", f"{total:.2f}", f"{rest:.2f}"])
    return f"## What it took\n\nCPU hours, of one core each; no GPU.\n\n{markdown(lines)}\n"


def _table(table: Table, kept: Sequence[cells.Row], found_signs: Sequence[Sign]) -> str:
    parts = [f"## {table.title}\n", f"Reported: {table.source}\n", f"Here: {table.scale}\n"]
    parts += [f"Found beside the signs: {table.found}\n"] if table.found else []
    parts += [f"Each row again: `{cells.command(table)} --setting SETTING --method METHOD --seeds SEED --again`\n"]
    parts += [_signs(found_signs)] if found_signs else []
    for setting in table.settings:
        found = found_in(table, setting, kept)
        parts += [f"### {table.title}, {setting.name}\n", _figures(table, setting, found), ""]
        if table.targets_against:
            parts += [_targets(table, setting, found), ""]
    return "\n".join(parts)


def _figures(table: Table, setting: Setting, found: Found) -> str:
    names = [NAMES[figure] for figure in table.figures]
    deviation = "pm_l" in table.figures
    reported = [figure for figure in table.figures if any(figure in told for told in setting.reported.values())]
    head = ["method", *(f"{NAMES[figure]}, reported" for figure in reported), *(f"{name}, here" for name in names)]
    more = [DEVIATION_NAME] if deviation else []
    lines = [[*head, *more, "rounds", "up, down", "device s", "seeds", "CPU s"]]
    for line in table.lines_of(setting):
        rows = found[line.name]
        told = setting.reported.get(line.name, {})
        rounds, taking_part = _rounds_and_devices(table, setting, line)
        lines.append(
            [
                line.name,
                *(f"{told[figure]:.2f}" if figure in told else "" for figure in reported),
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
    against = _reached(found[table.targets_against])
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
            spent, base = _reached(found[line.name]).get(target), against.get(target)
            if spent is None:
                continue
            ratios = [f"{base[of] / spent[of]:.1f}" if base else "not reached there" for of in ("bytes", "flops")]
            costs = [human_bytes(spent["bytes"]), human_flops(spent["flops"])]
            lines.append([f"{100 * float(target):.0f} %", line.name, f"{spent['round']:.0f}", *costs, *ratios])
    return markdown(lines)


def _figures_of(tables: Sequence[Table], folder: Path) -> str:
    """Return the papers' figures that were drawn, and the names of the others."""
    names = {table.name for table in tables}
    lines, missing = [["figure", "shows", "pictures"]], []
    for figure in FIGURES:
        if figure.table not in names:
            continue
        drawn = [name for name in figure.pictures if (folder / PICTURES / f"{name}.png").exists()]
        missing += [name for name in figure.pictures if name not in drawn]
        links = [
            f"[{name.removeprefix(figure.name).strip('-') or name}]({folder.name}/{PICTURES}/{name}.png)"
            for name in drawn
        ]
        if links:
            lines.append([figure.name, figure.shows, ", ".join(links)])
    text = markdown(lines) if len(lines) > 1 else "None is drawn yet."
    left = f"\n\nTheir runs are missing: {', '.join(missing)}." if missing else ""
    return f"{PICTURES_HEAD}\n{text}{left}\n"


def _reached(rows: Sequence[cells.Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = (
        json.loads(rows[0][cells.REACHED]) if rows and rows[0].get(cells.REACHED) else {}
    )
    return found


def _anchor(title: str) -> str:
    """Return the fragment that a heading gets on a page of GitHub."""
    return "".join(sign for sign in title.lower().replace(" ", "-") if sign.isalnum() or sign in "-_")


def _mean(values: Sequence[float]) -> str:
    """Return `mean ± deviation` in per cent, or the one value; empty where the method has no such figure."""
    if len(values) > 1:
        return mean_and_deviation(values)
    return f"{100 * values[0]:.1f}" if values else ""
