"""What the pictures of a comparison share: one look per method, the heading, and the CSV beside the picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.report import text_files
from coordinator.report.canvas import BLUE, DOT, GREY, HEADER_IN, ORANGE, SOFT
from coordinator.report.comparison import ALONE, Comparison
from coordinator.report.lines import End, accuracy_axis, end_labels, names_beside
from coordinator.report.units import percent, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito without its yellow, which is lost on white."""
DASHES = ("-", "--", ":", "-.")
WIDTH_IN, HEIGHT_IN = 7.2, 4.4
MOST_AT_ENDS = 8
"""Lines that are named at their ends; the names of more would need more room than the picture has."""
_NAME_IN = 0.2


def height_in(names: int, least_in: float = HEIGHT_IN) -> float:
    """Of a picture with so many names beside it."""
    return max(least_in, HEADER_IN + 0.3 + _NAME_IN * names)


class Look(NamedTuple):
    """Of a line."""

    colour: str
    dashes: str


def look(place: int) -> Look:
    """Grey for the devices alone, then the palette, again and again with other dashes."""
    if place == 0:
        return Look(GREY, "--")
    return Look(COLOURS[(place - 1) % len(COLOURS)], DASHES[(place - 1) // len(COLOURS) % len(DASHES)])


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Of each line: the same in every picture of a comparison."""
    others = [method for method in methods if method != ALONE]
    return {ALONE: look(0), **{method: look(place) for place, method in enumerate(others, 1)}}


def what(comparison: Comparison) -> str:
    """What was compared: the first words of every subtitle."""
    example = comparison.example
    seeds = f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}"
    methods = [line.method for line in comparison.lines if line.method != ALONE]
    words = (
        example.federation,
        methods[0] if len(methods) == 1 else f"{len(methods)} methods",
        f"{len(example.devices)} devices",
        f"{example.rounds} rounds",
        seeds,
    )
    return printable(DOT.join(words))


def over_seeds(comparison: Comparison) -> str:
    """Of a line that is a mean over seeds, what to say of it; nothing of one seed."""
    return f", mean over {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""


def shared(curves: Sequence[Mapping[int, object]]) -> list[int]:
    """The rounds that all seeds measured."""
    return sorted(set.intersection(*(set(curve) for curve in curves)))


def write_points(path: Path, columns: Sequence[str], points: Iterable[Mapping[str, object]]) -> None:
    """The CSV beside a picture."""
    text_files.replace(path.with_suffix(".csv"), text_files.csv_text(columns, points))


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], of: Look, words: str = "") -> None:
    """One method's line, with a dot at its end; `words` name it in a legend."""
    axes.plot(
        x,
        y,
        color=of.colour,
        linestyle=of.dashes,
        linewidth=2.2,
        marker="o",
        markevery=[-1],
        markersize=4.5,
        label=words,
    )


def end(method: str, x: float, value: float, of: Look) -> End:
    """The end of a line, and what to write there."""
    return End(x, value, f"{printable(method)} {percent(value)}", of.colour)


def finish(axes: Axes, ends: Sequence[End], bottom: Callable[[Axes], None], *, beside: bool) -> None:
    """Axes and names of lines, at their ends or beside the picture; without any line, say so."""
    if ends:
        bottom(axes)
        accuracy_axis(axes)
        (names_beside if beside or len(ends) > MOST_AT_ENDS else end_labels)(axes, ends)
    else:
        nothing(axes, "no accuracy was measured")


def nothing(axes: Axes, words: str) -> None:
    """An empty picture that says why."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", color=SOFT, transform=axes.transAxes)
