"""The command `edge-sdk sweep`, the text of a sweep for the terminal, and its pictures: each method's gain."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.record.units import percent, printable
from coordinator.results.comparison.compare import MethodRuns, setting_text
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.figures.intervals import Spread, spread_of
from coordinator.results.plots.drawing import (
    DOT,
    INK,
    SOFT,
    WIDTH_IN,
    LineStyle,
    draw_nothing,
    height_for_names,
    line_styles,
    picture,
    picture_path,
    pictures_in,
    short,
    write_points,
)
from coordinator.results.plots.plots import draw_comparison
from coordinator.results.report.tables import plain_text
from edge_sdk.terminal import indented, room_of
from edge_sim.config import settings
from edge_sim.studies.axes import Axis, check_overrides, read_axes
from edge_sim.studies.compare_command import KEPT, say, say_drawn
from edge_sim.studies.planned_runs import label
from edge_sim.studies.search import CRITERION, search_of
from edge_sim.studies.sweep import Candidate, Condition, Sweep, sweep, sweep_summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def command(args: argparse.Namespace) -> int:
    """Run the missing runs of the grid, and show the choice of each method."""
    config = settings.load_config(args.file, args.overrides)
    out = args.out or Path("runs") / f"{config.federation.name}-sweep"
    methods, seeds = args.methods or (config.federation.method,), args.seeds or (config.federation.seed,)
    axes, search = read_axes(args.over), search_of(args.trials, prune=args.prune)
    check_overrides(config, args.overrides, axes, methods=args.methods, seeds=args.seeds)
    try:
        found = sweep(config, axes, methods, seeds, out, search=search, jobs=args.jobs, say=say)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {KEPT.format(out=out)}\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(sweep_summary(found), indent=2) + "\n")
    else:
        sys.stdout.write(f"{sweep_text(found, room_of(sys.stdout))}\nfigures: {out / 'sweep.json'}\n")
        if not args.no_plots:
            say_drawn(lambda: _pictures(found, out / "plots"))
    return 0 if found.completed else 1


def _pictures(found: Sweep, folder: Path) -> list[Path]:
    """Draw the gains along the axes and the comparison under each condition."""
    under = (draw_comparison(each.comparison, folder / label(each.values)) for each in found.conditions)
    return [*draw_gains(found, folder), *itertools.chain.from_iterable(under)]


def sweep_text(found: Sweep, room: int | None = None) -> str:
    """Return the table of each condition as aligned text, followed by the methods' chosen settings.

    room: the width of the tables in characters, or None for any.
    """
    return "\n".join(_condition(condition, room) for condition in found.conditions)


def _condition(condition: Condition, room: int | None) -> str:
    heading = f"{printable(setting_text(condition.values))}:\n\n" if condition.values else ""
    choices = [_choice(condition, candidate) for candidate in condition.chosen.values() if candidate.setting]
    lines = "".join(f"{indented(each, room)}\n" for each in choices)
    chosen = f"chosen on the validation part:\n{lines}" if choices else ""
    table = compare_table(condition.comparison, everything="trials.csv")
    return f"{heading}{plain_text(table, room)}{chosen}"


def _choice(condition: Condition, candidate: Candidate) -> str:
    method = candidate.line.method
    tried = [other for other in condition.candidates if other.line.method == method]
    pruned = sum(other.pruned for other in tried)
    early = f", {pruned} of them ended early" if pruned else ""
    found = candidate.validation
    validated = "never measured" if found is None else percent(found.mean)
    setting = printable(setting_text(candidate.setting))
    return f"{method}: {setting} (validation {validated}, best of {len(tried)}{early})"


_STEP, _SPREAD = 0.12, 0.7
"""Distance between two methods' bars at one value, and maximum width of all bars at a value, as shares of the distance
between two values."""


class GainPoint(NamedTuple):
    """A row of gain_KEY.csv: a paired difference of accuracies, with its 95 % interval if there are enough seeds."""

    method: str
    value: str
    gain: float
    low: float | None
    high: float | None


def draw_gains(found: Sweep, folder: Path) -> list[Path]:
    """Draw a picture for each axis with several values, and return the first file of each.

    Raises MissingExtra without matplotlib, StoreError if the pictures cannot be written.
    """
    with pictures_in(folder):
        varied = {picture_path(folder, f"gain_{axis.key}"): axis for axis in found.axes if _has_gains(found, axis)}
        for path, axis in varied.items():
            draw_gain(found, axis, path)
        return list(varied)


def _has_gains(found: Sweep, axis: Axis) -> bool:
    """Whether each value of the axis was run with all other axes at their base."""
    searched = found.search is not None and found.search.trials is not None
    return len(axis.values) > 1 and not (axis.chosen and searched)


def draw_gain(found: Sweep, axis: Axis, path: Path) -> None:
    """Draw the paired difference of accuracy between each value and the base value; other axes are at their base.

    The subtitle and columns of the CSV name their values.

    A setting is judged by validation accuracy, because the test data choose nothing.  A condition is judged by test
    accuracy, with the settings that each method chose under it.
    """
    points, bases = gain_points(found, axis), _bases(found, axis)
    write_points(path, (*GainPoint._fields, *bases), ({**point._asdict(), **bases} for point in points))
    ticks = [str(value) for value in axis.values]
    methods = list(dict.fromkeys(point.method for point in points))
    styles = line_styles(line.method for line in found.conditions[0].comparison.lines)
    step = min(_STEP, _SPREAD / max(1, len(methods)))
    part = "validation part" if axis.chosen else "test, with the settings chosen"
    where = f" with {setting_text(bases)}" if bases else ""
    subtitle = f"minus the accuracy at {axis.values[0]}{where}, on the {part}{DOT}bars: 95 % interval over seeds"
    with picture(
        path, WIDTH_IN, height_for_names(len(methods)), printable(f"Gain over {axis.key}"), printable(subtitle)
    ) as figure:
        axes = figure.add_subplot()
        if not points:
            draw_nothing(axes, "no accuracy was measured")
            return
        axes.axhline(0, color=SOFT, linewidth=0.8)
        for place, method in enumerate(methods):
            row = [point for point in points if point.method == method]
            shift = step * (place - (len(methods) - 1) / 2)
            _bars(axes, [ticks.index(point.value) + shift for point in row], row, styles[method])
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlim(-0.5, len(ticks) - 0.5)
        axes.set_xlabel(axis.key)
        axes.set_ylabel("points of accuracy", color=INK)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def _bars(axes: Axes, x: Sequence[float], row: Sequence[GainPoint], style: LineStyle) -> None:
    """Draw one method's gains in percentage points, each with its interval, if known."""
    low = [0.0 if point.low is None else 100 * (point.gain - point.low) for point in row]
    high = [0.0 if point.high is None else 100 * (point.high - point.gain) for point in row]
    axes.errorbar(
        x,
        [100 * point.gain for point in row],
        yerr=[low, high],
        color=style.colour,
        linestyle=style.dashes,
        marker=style.marker or "o",
        markersize=4.5,
        capsize=2.5,
        label=short(row[0].method),
    )


def gain_points(found: Sweep, axis: Axis) -> list[GainPoint]:
    """Return the points of one axis, in the order of methods, then of values."""
    lines = list(_lines(found, axis))
    points = []
    for method in dict.fromkeys(method for method, _, _ in lines):
        by_value = {value: line for name, value, line in lines if name == method}
        base = by_value.get(str(axis.values[0]))
        for value, line in by_value.items():
            difference = _difference(line, base, CRITERION if axis.chosen else "mean") if base else None
            if difference is not None:
                low, high = difference.interval or (None, None)
                points.append(GainPoint(method, value, difference.mean, low, high))
    return points


def _lines(found: Sweep, axis: Axis) -> Iterator[tuple[str, str, MethodRuns]]:
    """Yield (method, value, runs) in the order of the grid."""
    bases = _bases(found, axis)
    for condition in found.conditions:
        candidates = condition.candidates if axis.chosen else condition.chosen.values()
        for candidate in candidates:
            if candidate.pruned:
                continue
            at = {**condition.values, **(candidate.setting if axis.chosen else {})}
            if axis.key in at and all(at[key] == value for key, value in bases.items() if key in at):
                yield candidate.line.method, str(at[axis.key]), candidate.line


def _bases(found: Sweep, axis: Axis) -> dict[str, Any]:
    """Return the values of the other axes at the points of one axis; under a condition, settings are chosen ones."""
    others = [other for other in found.axes if other.key != axis.key and (axis.chosen or not other.chosen)]
    return {other.key: other.values[0] for other in others if not axis.method or other.method in ("", axis.method)}


def _difference(line: MethodRuns, base: MethodRuns, figure: str) -> Spread | None:
    pairs = [(a.accuracy(figure), b.accuracy(figure)) for a, b in zip(line.trials, base.trials, strict=True)]
    return spread_of(a - b for a, b in pairs if a is not None and b is not None)
