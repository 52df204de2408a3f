"""Drawing with matplotlib: the style of all pictures, and the figures, axes and labels that they are made of.

matplotlib is imported on first use.  Its global state (pyplot, the list of figures, rcParams) stays as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coordinator.record.result import Result
from coordinator.record.units import duration_unit, printable
from coordinator.report import text_files
from coordinator.report.compare import ALONE
from edge_sdk.errors import MissingExtra, StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart, without yellow: it is lost on white."""
DASHES = ("-", "--", ":", "-.")
INK, SOFT, FAINT = "#222222", "#666666", "#E6E6E6"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "axes.labelcolor": SOFT,
    "axes.edgecolor": "#BBBBBB",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.hashsalt": "edge-sdk",  # ids inside the file depend only on what is drawn
}
WIDTH_IN, HEIGHT_IN = 7.2, 4.4
MOST_IN = 24.0
"""The widest picture: with more columns than fit, columns shrink and only some are named."""
HEADER_IN, MARGIN_IN = 0.62, 0.12
LINE_IN = 0.17
"""The height of a line of small text."""
LONGEST_NAME = 26
DOT = " \N{MIDDLE DOT} "
"""The separator in a subtitle."""
MOST_AT_ENDS = 8
"""The most lines that are named at their ends; the names of more would not fit."""
_NAME_IN = 0.2
_CHARACTER_IN = 0.0585
"""The mean width of a character of a subtitle."""
_LABEL_SHARE = 0.06
"""The height of a line's name, as a share of the picture's."""
Shown = TypeVar("Shown")
"""The type of what is drawn, such as a Result."""


# -- files --------------------------------------------------------------------------------------------------------


@contextmanager
def pictures_in(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder for pictures, created where it is missing.  Raises StoreError where it cannot be written."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot write the pictures ({error.strerror or error}); free or change the place, "
            "then edge-sdk report draws them"
        ) from error


def draw_each(shown: Shown, drawings: Sequence[Callable[[Shown, Path], None]], folder: Path) -> list[Path]:
    """Call each function to draw one picture, into a file with the name of the function; return the files."""
    paths = [folder / f"{draw.__name__}.png" for draw in drawings]
    for draw, path in zip(drawings, paths, strict=True):
        draw(shown, path)
    return paths


def write_points(path: Path, columns: Sequence[str], points: Iterable[Mapping[str, object]]) -> None:
    """Write the CSV beside a picture."""
    text_files.replace(path.with_suffix(".csv"), text_files.csv_text(columns, points))


# -- figures ------------------------------------------------------------------------------------------------------


@contextmanager
def picture(path: Path, width_in: float, height_in: float, title: str, subtitle: str) -> Iterator[Figure]:
    """A figure with a heading, saved on leaving: as PNG, and as SVG beside it.

    A subtitle too long for one line continues on further lines, and the picture grows by their height.
    Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib import rc_context  # an optional package: only where a picture is drawn
        from matplotlib.figure import Figure as NewFigure
    except ImportError:
        raise MissingExtra("matplotlib", "coordinator", "drawing plots") from None
    lines = _wrapped(subtitle, width_in)
    header_in = HEADER_IN + LINE_IN * (len(lines) - 1)
    height_in += header_in - HEADER_IN
    with rc_context(STYLE):
        figure = NewFigure(figsize=(width_in, height_in), layout="constrained")
        body = (MARGIN_IN / width_in, 0.02, 1 - 2 * MARGIN_IN / width_in, 1 - header_in / height_in - 0.02)
        figure.get_layout_engine().set(rect=body)  # type: ignore[union-attr,call-arg]  # "constrained" has a rect
        left = MARGIN_IN / width_in
        figure.text(left, 1 - 0.12 / height_in, title, va="top", fontsize=12, fontweight="bold")
        figure.text(left, 1 - 0.38 / height_in, "\n".join(lines), va="top", fontsize=8, color=SOFT)
        yield figure
        # without date and version, the same run gives the same bytes
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
        figure.set_layout_engine("none")  # the layout is found; a second search would take as long again
        figure.savefig(path.with_suffix(".svg"), format="svg", metadata={"Date": None, "Creator": None})


def _wrapped(subtitle: str, width_in: float) -> list[str]:
    """The lines of a subtitle, broken between its parts."""
    most = int((width_in - 2 * MARGIN_IN) / _CHARACTER_IN)
    lines = [""]
    for part in subtitle.split(DOT):
        longer = f"{lines[-1]}{DOT}{part}" if lines[-1] else part
        if lines[-1] and len(longer) > most:
            lines.append(part)
        else:
            lines[-1] = longer
    return lines


def heading(result: Result, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """The first words of a subtitle: what was run.  result: the run, or one of those that were compared."""
    only = len(methods) == len(seeds) == 1
    done = f"{result.rounds_done} of " if only and not result.completed else ""
    words = (
        result.federation,
        methods[0] if len(methods) == 1 else f"{len(methods)} methods",
        _count(len(result.devices), "device"),
        done + _count(result.rounds, "round"),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}",
    )
    return printable(DOT.join(words))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def height_for_names(names: int, least_in: float = HEIGHT_IN) -> float:
    """The height of a picture with so many names beside it."""
    return max(least_in, HEADER_IN + 0.3 + _NAME_IN * names)


def draw_nothing(axes: Axes, reason: str) -> None:
    """Empty the axes and write the reason."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, reason, ha="center", color=SOFT, transform=axes.transAxes)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """A name, cut to `most` characters."""
    clean = printable(text)
    return clean if len(clean) <= most else clean[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def bar_labels(axes: Axes, values: Sequence[float | None], offset: float, words: Callable[[float], str]) -> None:
    """Write each horizontal bar's value at its end, or that there is none."""
    for row, value in enumerate(values):
        axes.annotate(
            "not measured" if value is None else words(value),
            (value or 0, row + offset),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=SOFT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # no grid line runs through a figure
            annotation_clip=False,
        )


# -- axes ---------------------------------------------------------------------------------------------------------


def round_axis(axes: Axes) -> None:
    """Make the horizontal axis one of rounds, which are whole numbers."""
    first, last = axes.dataLim.intervalx
    if math.isfinite(last - first):  # otherwise nothing was drawn here
        margin = max(0.4, 0.02 * (last - first))
        axes.set_xlim(max(0.5, first - margin), last + margin)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlabel("round")
    axes.grid(visible=False, axis="x")


def accuracy_axis(axes: Axes) -> None:
    """Make the vertical axis one of accuracies, between 0 and 1."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0, low), min(1, high))
    axes.yaxis.set_major_formatter(tick_percent)


def seconds_axis(axes: Axes, words: str) -> Callable[[float], str]:
    """Make the horizontal axis one of durations from 0, all in the unit that suits the longest.

    Return how the axis writes a number of seconds.
    """
    from matplotlib.ticker import MaxNLocator  # an optional package: only where a picture is drawn

    most_s = axes.get_xlim()[1]
    unit, unit_s = duration_unit(most_s)
    ticks = [
        tick
        for tick in MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(0, most_s / unit_s)
        if 0 <= tick * unit_s <= most_s
    ]
    axes.set_xlim(0, most_s)
    axes.set_xticks([tick * unit_s for tick in ticks], [f"{tick:.6g} {unit}" if tick else "0" for tick in ticks])
    axes.set_xlabel(words)
    return lambda duration_s: f"{duration_s / unit_s:.3g} {unit}"


def tick_percent(value: float, _position: float) -> str:
    """A fraction as an axis writes it."""
    return f"{round(100 * value, 2):g} %"


# -- lines and their names ----------------------------------------------------------------------------------------


class LineStyle(NamedTuple):
    """How a method's line looks in every picture."""

    colour: str
    dashes: str


class LineEnd(NamedTuple):
    """The last point of a line, and the line's name."""

    x: float
    y: float
    words: str
    colour: str


def line_style(place: int) -> LineStyle:
    """Place 0 is grey, for devices alone; the others take the colours in turn, then again with other dashes."""
    if place == 0:
        return LineStyle(GREY, "--")
    return LineStyle(COLOURS[(place - 1) % len(COLOURS)], DASHES[(place - 1) // len(COLOURS) % len(DASHES)])


def line_styles(methods: Iterable[str]) -> dict[str, LineStyle]:
    """The line style of each method, the same in every picture of these methods; the devices alone come first."""
    others = [method for method in methods if method != ALONE]
    return {ALONE: line_style(0), **{method: line_style(place) for place, method in enumerate(others, 1)}}


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: LineStyle, words: str = "") -> LineEnd:
    """Draw a line with a dot at its end, and return the end; `words` name the line in a legend."""
    axes.plot(
        x,
        y,
        color=style.colour,
        linestyle=style.dashes,
        linewidth=2.2,
        marker="o",
        markevery=[-1],
        markersize=4.5,
        label=words,
    )
    return LineEnd(x[-1], y[-1], words, style.colour)


def label_lines(axes: Axes, ends: Sequence[LineEnd], *, beside: bool) -> None:
    """Name the lines: at their ends, or beside the picture where they are many or end in the midst of others."""
    (_labels_beside if beside or len(ends) > MOST_AT_ENDS else _labels_at_ends)(axes, ends)


def _labels_at_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    low, high = axes.get_ylim()
    heights = apart([end.y for end in ends], _LABEL_SHARE * (high - low))
    for end, height in zip(ends, heights, strict=True):
        axes.annotate(
            end.words,
            (end.x, height),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            color=end.colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},  # another line may pass behind
            annotation_clip=False,
        )


def _labels_beside(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Name the lines to the right of the picture, the highest first."""
    lines = {line.get_label(): line for line in axes.get_lines()}
    ordered = sorted(ends, key=lambda end: -end.y)
    axes.legend(
        [lines[end.words] for end in ordered],
        [end.words for end in ordered],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
        labelcolor="linecolor",
    )


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Positions near the values, in their order, and at least `gap` from each other.

    Values that are too close form a group, which is spread around its mean; groups that then touch become one.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    groups: list[tuple[float, int]] = []  # (mean, size)
    for index in order:
        mean, size = values[index], 1
        while groups and mean - groups[-1][0] < gap * (size + groups[-1][1]) / 2:
            other, others = groups.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        groups.append((mean, size))
    placed = [mean + gap * (place - (size - 1) / 2) for mean, size in groups for place in range(size)]
    return [placed[order.index(index)] for index in range(len(values))]


def label_step(count: int, column_in: float) -> int:
    """The n for which every n-th of `count` columns can be named without names touching."""
    return math.ceil(LINE_IN / min(column_in, (MOST_IN - 2 * HEADER_IN) / max(count, 1)))
