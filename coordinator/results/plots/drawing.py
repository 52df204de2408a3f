"""Drawing with matplotlib: the style of all pictures, and the figures, axes and labels that they are made of.

matplotlib is imported on first use.  Its global state (pyplot, the list of figures, rcParams) stays as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from coordinator.record.units import duration_unit, printable
from coordinator.results.comparison.compare import ALONE
from coordinator.results.figures.result import Result
from coordinator.results.plots.look import SCREEN, Look, chosen_look, looking
from coordinator.results.report import text_files
from edge_sdk.class_names import name_of
from edge_sdk.errors import MissingExtra, StoreError, UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can distinguish, without yellow, which is invisible on
white."""
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""The shapes on lines and points.  The lengths of COLOURS, DASHES and MARKERS have no common divisor, so that 252 lines
differ; neighbours differ in all three."""
MARKS = 7
"""About the number of markers on a line."""
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
_TITLE_PT, _SUBTITLE_PT = 12, 8
_LEGEND_ROW_IN, _LEGEND_KEY_IN = 0.15, 0.5
"""The height of a row of a legend below a picture, and the width of an entry without its name."""
_LABEL_SHARE = 0.06
"""The height of a line's name, as a share of the picture's."""
Shown = TypeVar("Shown")
"""The type of what is drawn, such as a Result."""
Drawings: TypeAlias = "Mapping[str, Callable[[Path], None]]"
"""The functions that draw pictures into a file, by the name of the picture."""


# -- files --------------------------------------------------------------------------------------------------------


@contextmanager
def pictures_in(directory: str | os.PathLike[str], look: Look = SCREEN) -> Iterator[Path]:
    """The folder for pictures with this look, created where it is missing.

    Raises StoreError where it cannot be written.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with looking(look):
            yield folder
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot write the pictures ({error.strerror or error}); free or change the place, "
            "then edge-sdk report draws them"
        ) from error


def drawings_of(shown: Shown, draw: Iterable[Callable[[Shown, Path], None]]) -> Drawings:
    """Functions that draw what is shown, by their names, which become those of the files."""
    return {each.__name__: partial(each, shown) for each in draw}


def chosen_drawings(drawings: Drawings, only: Sequence[str]) -> Drawings:
    """Return the pictures with these names; no names: all.  Raises UsageError for a name that is not among them."""
    for name in only:
        if name not in drawings:
            raise UsageError(f"--only {name}: no such picture here; there are {', '.join(drawings)}")
    return {name: drawings[name] for name in only or drawings}


def draw_pictures(
    drawings: Drawings, directory: str | os.PathLike[str], look: Look = SCREEN, only: Sequence[str] = ()
) -> list[Path]:
    """Draw pictures into a folder, which is made where it is missing; return the first file of each.

    only: the names of the wanted pictures, or empty for all.  Raises UsageError for a name that is not among them,
    MissingExtra without matplotlib, StoreError where the pictures cannot be written.
    """
    chosen = chosen_drawings(drawings, only)
    paths = []
    with pictures_in(directory, look) as folder:
        for name, draw in chosen.items():
            paths.append(picture_path(folder, name))
            draw(paths[-1])
    return paths


def picture_path(folder: Path, name: str) -> Path:
    """The first of the files of a picture."""
    return folder / f"{name}.{chosen_look().formats[0]}"


def write_points(path: Path, columns: Sequence[str], points: Iterable[Mapping[str, object]]) -> None:
    """Write the CSV beside a picture."""
    text_files.replace_file(path.with_suffix(".csv"), text_files.csv_text(columns, points))


# -- figures ------------------------------------------------------------------------------------------------------


@contextmanager
def picture(
    path: Path, width_in: float, height_in: float, title: str, subtitle: str, *, below: Sequence[str] = ()
) -> Iterator[Figure]:
    """A figure with a heading, saved on leaving in each format of the chosen look.

    A heading too long for one line continues on further lines, and the picture grows by their height.
    below: the names of the lines, for which a picture for a paper gets room below.
    Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib import rc_context  # an optional package: only where a picture is drawn
        from matplotlib.figure import Figure as NewFigure
    except ImportError:
        raise MissingExtra("matplotlib", "coordinator", "drawing plots") from None
    look = chosen_look()
    width_in, body_in = look.scaled(width_in, height_in - HEADER_IN)
    body_in += _LEGEND_ROW_IN * -(-len(below) // legend_columns(below)) if below and look.for_paper else 0.0
    style: Any = {**STYLE, **look.style}
    with rc_context(style):
        figure = NewFigure(figsize=(width_in, body_in), layout="constrained")
        header_in = _draw_heading(figure, width_in, body_in, title, subtitle) if look.titles else MARGIN_IN / 2
        height_in = header_in + body_in
        figure.set_size_inches(width_in, height_in)
        margin_in = MARGIN_IN / (4 if look.for_paper else 1)  # a paper has its own margins
        body = (margin_in / width_in, 0.02, 1 - 2 * margin_in / width_in, 1 - header_in / height_in - 0.02)
        figure.get_layout_engine().set(rect=body)  # type: ignore[union-attr,call-arg]  # "constrained" has a rect
        yield figure
        render_figure(figure, path, {"Title": title, "Description": subtitle})


def render_figure(figure: Figure, path: Path, heading_words: Mapping[str, str]) -> None:
    """Write a figure in each format of the chosen look; an SVG also holds the heading as text."""
    for place, name in enumerate(chosen_look().formats):
        options = dict(_SAVED[name])
        if name == "svg":
            options["metadata"] = {**options["metadata"], **heading_words}
        figure.savefig(path.with_suffix(f".{name}"), format=name, **options)
        if not place:
            figure.set_layout_engine("none")  # the layout is found; a second search would take as long again


_SAVED: Mapping[str, Any] = {
    "png": {"dpi": DPI, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
"""How files are written: without date and version, the same run gives the same bytes."""


def _draw_heading(figure: Figure, width_in: float, body_in: float, title: str, subtitle: str) -> float:
    """Write title and subtitle at the top of the picture, and return the height of both in inches."""
    room_in = width_in - 2 * MARGIN_IN
    titles = _wrapped(title, room_in, _TITLE_PT, bold=True)
    lines = _wrapped(subtitle, room_in, _SUBTITLE_PT)
    down_in = 0.38 + _TITLE_PT / 60 * (len(titles) - 1)
    header_in = HEADER_IN + down_in - 0.38 + LINE_IN * (len(lines) - 1)
    left, height_in = MARGIN_IN / width_in, header_in + body_in
    figure.text(left, 1 - 0.12 / height_in, "\n".join(titles), va="top", fontsize=_TITLE_PT, fontweight="bold")
    figure.text(left, 1 - down_in / height_in, "\n".join(lines), va="top", fontsize=_SUBTITLE_PT, color=SOFT)
    return header_in


def _wrapped(text: str, room_in: float, size_pt: float, *, bold: bool = False) -> list[str]:
    """The lines of a text: broken between its parts, and inside a part that is longer than a line.

    A single word that is too long is broken where the room ends.
    """
    lines = [""]
    for part in text.split(DOT):
        longer = f"{lines[-1]}{DOT}{part}" if lines[-1] else part
        if text_width_in(longer, size_pt, bold=bold) <= room_in:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for word in _pieces(part, room_in, size_pt, bold=bold):
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if lines[-1] and text_width_in(longer, size_pt, bold=bold) > room_in:
                lines.append(word)
            else:
                lines[-1] = longer
    return lines


def _pieces(part: str, room_in: float, size_pt: float, *, bold: bool) -> Iterator[str]:
    """The words of a text; of one that is longer than a line, pieces that are not."""
    for word in part.split(" "):
        rest = word
        while text_width_in(rest, size_pt, bold=bold) > room_in and len(rest) > 1:
            most = max(1, int(len(rest) * room_in / text_width_in(rest, size_pt, bold=bold)) - 1)
            yield rest[:most]
            rest = rest[most:]
        yield rest


def text_width_in(text: str, size_pt: float, *, bold: bool = False) -> float:
    """The width of a text on one line, in inches, in the font of all pictures."""
    from matplotlib.font_manager import FontProperties  # an optional package: only where a picture is drawn
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    font = FontProperties(family=STYLE["font.sans-serif"], weight="bold" if bold else "normal")
    shape = TextPath((0, 0), text.replace("$", r"\$"), size=size_pt, prop=font)
    return float(shape.vertices[:, 0].max()) / 72  # the points of the outlines: curves take a hundred times as long


def heading(result: Result, methods: Sequence[str], seeds: Sequence[int], rounds: Collection[int] = ()) -> str:
    """The first words of a subtitle: what was run.  result: the run, or one of those that were compared.

    rounds: the numbers of rounds of all that were compared.
    """
    only = len(methods) == len(seeds) == 1
    done = f"{result.rounds_done} of " if only and not result.completed else ""
    words = (
        result.federation,
        methods[0] if len(methods) == 1 else f"{len(methods)} methods",
        _count(len(result.devices), "device"),
        f"{min(rounds)} to {max(rounds)} rounds" if len({*rounds}) > 1 else done + _count(result.rounds, "round"),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}",
    )
    return printable(DOT.join(words))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def height_for_names(names: int, least_in: float = HEIGHT_IN) -> float:
    """The height of a picture with this many names beside it."""
    return max(least_in, HEADER_IN + 0.3 + _NAME_IN * names)


def draw_nothing(axes: Axes, reason: str) -> None:
    """Empty the axes and write the reason."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, reason, ha="center", color=SOFT, transform=axes.transAxes)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """A name, cut to `most` characters."""
    clean = printable(text)
    return clean if len(clean) <= most else clean[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def class_label(label: int, names: Sequence[str]) -> str:
    """The name of a class as pictures show it, or its number; tables have the whole name."""
    return short(name_of(label, names))


def bar_labels(axes: Axes, values: Sequence[float | None], offset: float, words: Callable[[float], str]) -> None:
    """Write each horizontal bar's value at its end, or that it has none."""
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
    if not chosen_look().titles:  # nothing else says what the axis is
        axes.set_ylabel("accuracy")


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
    """How a method's line looks in every picture; no two lines of a picture differ by colour alone."""

    colour: str
    dashes: str
    marker: str
    first: int
    """The place of the first marker, so that markers of neighbours do not cover one another."""


class LineEnd(NamedTuple):
    """The last point of a line, and the line's name."""

    x: float
    y: float
    words: str
    colour: str


def line_style(place: int) -> LineStyle:
    """Place 0 is grey, for devices alone; the others take colours, dashes and markers in turn."""
    if place == 0:
        return LineStyle(GREY, "--", "", 0)
    turn = place - 1
    return LineStyle(
        COLOURS[turn % len(COLOURS)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)], turn % len(MARKERS)
    )


def line_styles(methods: Iterable[str]) -> dict[str, LineStyle]:
    """The line style of each method, the same in every picture of these methods; the devices alone come first."""
    others = [method for method in methods if method != ALONE]
    return {ALONE: line_style(0), **{method: line_style(place) for place, method in enumerate(others, 1)}}


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: LineStyle, words: str = "") -> LineEnd:
    """Draw a line with some markers and one at its end, and return the end; `words` name the line in a legend."""
    paper = chosen_look().for_paper
    axes.plot(
        x,
        y,
        color=style.colour,
        linestyle=style.dashes,
        linewidth=1.1 if paper else 1.8,
        marker=style.marker or None,
        markevery=_marked(len(x), style.first),
        markersize=3.2 if paper else 4.5,
        markeredgewidth=0,
        label=words,
    )
    return LineEnd(x[-1], y[-1], words, style.colour)


def _marked(points: int, first: int) -> list[int]:
    """The places of the markers on a line: about MARKS of them, and the end."""
    step = max(1, points // MARKS)
    return sorted({*range(first % step, points, step), points - 1})


def label_lines(axes: Axes, ends: Sequence[LineEnd], *, beside: bool) -> None:
    """Name the lines at their ends, or beside the picture if they are many or end among others.

    In a picture for a paper the names are below it, where they take no width.
    """
    if chosen_look().for_paper:
        legend_below(axes)
    else:
        (_labels_beside if beside or len(ends) > MOST_AT_ENDS else _labels_at_ends)(axes, ends)


def legend_below(axes: Axes, entries: Mapping[str, Artist] | None = None, title: str = "") -> None:
    """Name the lines of a picture below it, in as many columns as its width has room for.

    entries: what is named, by name; default: the lines and points of the axes.
    """
    figure = axes.get_figure(root=True)
    if entries is None:
        handles, names = axes.get_legend_handles_labels()
        entries = dict(zip(names, handles, strict=True))
    if figure is not None and entries:
        many = legend_columns(list(entries))
        figure.legend(
            [*entries.values()],
            [*entries],
            loc="outside lower center",
            ncols=many,
            title=title or None,
            title_fontsize=7,
            markerscale=2.0 if title else 1.0,  # points, other than the markers of lines, are small
            **_NARROW_LEGEND,
        )


_NARROW_LEGEND: Mapping[str, Any] = {"columnspacing": 1.0, "handlelength": 2.4, "handletextpad": 0.5, "borderpad": 0.1}


def legend_columns(names: Sequence[str]) -> int:
    """How many columns a legend of these names has below a picture for a paper."""
    room_in = chosen_look().width_in or WIDTH_IN
    widest_in = max(text_width_in(name, 7) for name in names) + _LEGEND_KEY_IN
    return max(1, min(len(names), int(room_in / widest_in)))


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
    width_in = chosen_look().width_in
    if width_in is not None:
        column_in = min(column_in, width_in / 2 / max(count, 1))
    return math.ceil(LINE_IN / min(column_in, (MOST_IN - 2 * HEADER_IN) / max(count, 1)))
