"""The picture of what methods do by round: each loss term's share of the gradient, and the methods' own figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from coordinator.record.instruments import InstrumentPoint, instrument_points
from coordinator.record.units import printable
from coordinator.report.compare import Comparison
from coordinator.report.curve_plots import words_for
from coordinator.report.drawing import (
    DOT,
    HEADER_IN,
    WIDTH_IN,
    draw_line,
    line_style,
    picture,
    round_axis,
    short,
    tick_percent,
    write_points,
)
from coordinator.report.look import chosen_look

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
