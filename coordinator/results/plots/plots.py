"""All pictures of a run, and all of a comparison, and the command `edge-sdk plot`.

The curves of a run are drawn as those of a comparison.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from coordinator.record.round_result import InstrumentPoint, instrument_points
from coordinator.record.units import printable
from coordinator.results.comparison.compare import ALONE, Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import is_comparison, read_comparison
from coordinator.results.figures.result import Result
from coordinator.results.plots.curve_plots import (
    accuracy_by_round,
    accuracy_for_its_cost,
    accuracy_of_devices,
    cost_drawings,
    own_task_by_round,
    shared_drawings,
    words_for,
)
from coordinator.results.plots.device_plots import (
    bytes_by_direction,
    devices_alone_federated,
    has_waits,
    samples_by_class,
    who_holds_what,
    who_was_waited_for,
)
from coordinator.results.plots.drawing import (
    DOT,
    HEADER_IN,
    WIDTH_IN,
    Drawings,
    chosen_drawings,
    draw_line,
    draw_pictures,
    drawings_of,
    line_style,
    picture,
    round_axis,
    short,
    tick_percent,
    write_points,
)
from coordinator.results.plots.fleet_plots import BY_DEVICE, MOST_LISTED
from coordinator.results.plots.insight_plots import MethodInsight, insight_drawings
from coordinator.results.plots.look import FORMATS, SCREEN, WIDTHS_IN, Look, chosen_look
from coordinator.results.report.progress_file import is_running
from coordinator.results.report.run_files import read_run
from edge_sdk.at_rest.files import make_folder
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.requests import MeasuredModel


def draw_run(
    result: Result, directory: str | os.PathLike[str], look: Look = SCREEN, only: Sequence[str] = ()
) -> list[Path]:
    """Draw the pictures of a run into `directory`: see draw_pictures."""
    return draw_pictures(run_drawings(result), directory, look, only)


def draw_comparison(
    comparison: Comparison, directory: str | os.PathLike[str], look: Look = SCREEN, only: Sequence[str] = ()
) -> list[Path]:
    """Draw the pictures of a comparison into `directory`: see draw_pictures."""
    return draw_pictures(comparison_drawings(comparison), directory, look, only)


def run_drawings(result: Result) -> Drawings:
    """The pictures of a run."""
    only = Comparison((MethodRuns(result.method, (Trial(result.seed, result),)),), result.method)
    models = _by_model(only)
    by_device = (devices_alone_federated, bytes_by_direction, who_holds_what, samples_by_class)
    many = {name: partial(draw, result) for name, draw in BY_DEVICE.items()}
    return {
        **drawings_of(_with_alone(models), (accuracy_by_round,)),
        **(many if len(result.devices) > MOST_LISTED else drawings_of(result, by_device)),
        **drawings_of(result, (who_was_waited_for,) if has_waits(result) else ()),
        **drawings_of(models, (own_task_by_round, *cost_drawings(only))),
        **drawings_of(only, instrument_drawings(only)),
        **insight_drawings(_insights(only), words_for(only)),
    }


def comparison_drawings(comparison: Comparison) -> Drawings:
    """The pictures of a comparison."""
    which = f", here {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
    drawings = (
        accuracy_by_round,
        own_task_by_round,
        accuracy_of_devices,
        *cost_drawings(comparison),
        accuracy_for_its_cost,
        *shared_drawings(comparison),
        *instrument_drawings(comparison),
    )
    return {
        **drawings_of(comparison, drawings),
        **insight_drawings(_insights(comparison), f"{words_for(comparison)}{which}"),
    }


def _with_alone(only: Comparison) -> Comparison:
    """The comparison of a run, with a line for its devices alone if they also trained alone."""
    (trial,) = only.lines[0].trials
    if not trial.result.standalone_history:
        return only
    alone = dataclasses.replace(trial.result, history=trial.result.standalone_history)
    return dataclasses.replace(only, lines=(MethodRuns(ALONE, (Trial(trial.seed, alone),)), *only.lines))


def _by_model(only: Comparison) -> Comparison:
    """The comparison of a run with a line for each model that was measured."""
    (line,) = only.lines
    if line.models == {"personal"}:
        return only
    common = "global (OCA)" if "active" in line.models else "global"
    names: tuple[tuple[MeasuredModel, str], ...] = (("personal", "own models"), ("global", common), ("active", "ACA"))
    found = [line.of(model, f"{line.method}, {name}") for model, name in names if model in line.models]
    return dataclasses.replace(only, lines=tuple(found))


def _insights(comparison: Comparison) -> list[MethodInsight]:
    """The insights of the first seed, without methods that never began: their models were never trained."""
    firsts = [(line.method, line.trials[0].result) for line in comparison.lines]
    return [
        MethodInsight(method, result.data.get("name", ""), result.insight, result.class_names)
        for method, result in firsts
        if result.insight is not None and result.rounds_done
    ]


# The picture of what methods do by round: each loss term's share of the gradient, and the methods' own figures.

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_IN = 2.1
COLUMNS = 2
_LEAST_PANEL_IN = 2.5
SHARE = "share"
"""The first word of the instruments that are shares of a gradient; those on the same samples share a panel."""
TOGETHER = {
    "discriminator_u": ("U of the discriminator", "U"),
    "discriminator_chance": ("U of the discriminator", "log(1/N), chance"),
}
"""The panel and the line of instruments that are compared with each other."""
Panel: TypeAlias = tuple[str, dict[str, list[InstrumentPoint]]]
"""A panel's title, and its lines by name."""


def instrument_drawings(comparison: Comparison) -> tuple[Callable[[Comparison, Path], None], ...]:
    """Return the function that draws the picture; none where no method has instruments."""
    return (instruments_by_round,) if any(_points(comparison).values()) else ()


def instruments_by_round(comparison: Comparison, path: Path) -> None:
    """Draw one panel for each instrument of each method, of the first seed; shares of one gradient in one panel."""
    points = _points(comparison)
    rows = ({"method": method, **point._asdict()} for method, found in points.items() for point in found)
    write_points(path, ("method", *InstrumentPoint._fields), rows)
    panels = [panel for method, found in points.items() for panel in _panels(method, found, several=len(points) > 1)]
    columns = chosen_look().columns(_LEAST_PANEL_IN, COLUMNS)
    deep = -(-len(panels) // columns)
    height_in = HEADER_IN + PANEL_IN * deep * (COLUMNS / columns)
    seed = f"{DOT}seed {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
    subtitle = f"{words_for(comparison)}{DOT}means over devices, by measured round{seed}"
    with picture(path, WIDTH_IN, height_in, "What the method does", subtitle) as figure:
        grid = figure.subplots(deep, columns, squeeze=False).ravel().tolist()
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()


def _points(comparison: Comparison) -> Mapping[str, Sequence[InstrumentPoint]]:
    found = {line.method: instrument_points(line.trials[0].result.history) for line in comparison.lines}
    return {method: points for method, points in found.items() if points}


def _panels(method: str, points: Sequence[InstrumentPoint], *, several: bool) -> list[Panel]:
    panels: dict[str, dict[str, list[InstrumentPoint]]] = {}
    for point in points:
        kind, _, rest = point.instrument.partition(".")
        samples, _, term = rest.partition(".")
        title, name = TOGETHER.get(point.instrument, (point.instrument, ""))
        if kind == SHARE:
            title, name = f"share of the gradient, {samples} samples", term
        panels.setdefault(title, {}).setdefault(name, []).append(point)
    first = f"{short(method)}: " if several else ""
    return [(printable(first + title.replace("_", " ")), lines) for title, lines in panels.items()]


def _draw_panel(axes: Axes, panel: Panel) -> None:
    title, lines = panel
    for place, (name, points) in enumerate(lines.items(), 1):
        x, y = [point.round for point in points], [point.mean for point in points]
        draw_line(axes, x, y, line_style(place), printable(name))
    axes.set_title(title, fontsize=8, loc="left")
    round_axis(axes)
    if any(lines):
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.26), ncols=2)  # lines may be anywhere
    if SHARE in title:
        axes.yaxis.set_major_formatter(tick_percent)
        axes.set_ylim(0, 1)


def command(args: argparse.Namespace) -> int:
    """Draw the pictures of a run or a comparison at the width of a column or a page."""
    look = Look(formats=_formats(args.formats), width_in=WIDTHS_IN[args.width], titles=args.titles)
    if is_comparison(args.folder):
        drawings = comparison_drawings(read_comparison(args.folder))
    elif is_running(args.folder):
        raise UsageError(f"{args.folder}: the run is not over; edge-sdk report shows its progress")
    else:
        drawings = run_drawings(read_run(args.folder))
    drawings = chosen_drawings(drawings, args.only)
    out: Path = args.out or args.folder / "plots" / args.width
    make_folder(out, f"--out {out}")
    paths = draw_pictures(drawings, out, look)
    found = (path.with_suffix(f".{name}") for path in paths for name in look.formats)
    sys.stdout.write("".join(f"picture: {path}\n" for path in found))
    return 0


def _formats(names: tuple[str, ...]) -> tuple[str, ...]:
    """The formats of files, each once.  Raises UsageError."""
    for name in names or ("",):
        if name not in FORMATS:
            raise UsageError(f"--format {name}: expected some of {', '.join(FORMATS)}, such as pdf,svg")
    return tuple(dict.fromkeys(names))
