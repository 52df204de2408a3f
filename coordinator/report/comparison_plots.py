"""The two pictures of a comparison, each with the CSV behind it: accuracy by round, and accuracy for its bytes."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.report import text_files
from coordinator.report.canvas import BLUE, DOT, GREY, ORANGE, SOFT, picture
from coordinator.report.comparison import ALONE, Comparison, Line
from coordinator.report.lines import End, accuracy_axis, end_labels, round_axis
from coordinator.report.units import human_bytes, percent, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito without its yellow, which is lost on white."""
DASHES = ("-", "--", ":", "-.")
WIDTH_IN, HEIGHT_IN = 7.2, 4.4
_MANY_DECADES, _ONE_STEP = 500.0, 5.0
"""Ratios of most to fewest bytes: from the one on only powers of ten are named, below the other even steps are."""


class RoundPoint(NamedTuple):
    """A row of accuracy_by_round.csv."""

    method: str
    round: int
    mean: float
    low: float
    high: float


class BytesPoint(NamedTuple):
    """A row of accuracy_by_bytes.csv; bytes are sent plus received so far, per device."""

    method: str
    round: int
    bytes_per_device: float
    mean: float


def draw_comparison(comparison: Comparison, directory: str | os.PathLike[str]) -> list[Path]:
    """Draw both pictures into `directory` and return the PNG files.  Raises MissingExtra without matplotlib."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    drawings: tuple[Callable[[Comparison, Path], None], ...] = (accuracy_by_round, accuracy_by_bytes)
    paths = [folder / f"{draw.__name__}.png" for draw in drawings]
    for draw, path in zip(drawings, paths, strict=True):
        draw(comparison, path)
    return paths


def accuracy_by_round(comparison: Comparison, path: Path) -> None:
    """Mean accuracy of the learning devices by round: a line and a band for each method; the CSV beside it."""
    points = {line.method: round_points(line) for line in comparison.lines}
    _write(path, RoundPoint._fields, points)
    band = f"\N{PLUS-MINUS SIGN} sd over {len(comparison.seeds)} seeds"
    if len(comparison.seeds) == 1:
        band = "worst to best device"
    subtitle = f"{_what(comparison)}{DOT}line: mean, band: {band}"
    with picture(path, WIDTH_IN, HEIGHT_IN, "Accuracy by round", subtitle) as figure:
        axes = figure.add_subplot()
        ends = []
        for place, (method, row) in enumerate(points.items()):
            if row:
                colour, dashes = look(place)
                rounds = [point.round for point in row]
                low, high = [point.low for point in row], [point.high for point in row]
                axes.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
                _line(axes, rounds, [point.mean for point in row], colour, dashes)
                ends.append(_end(method, rounds[-1], row[-1].mean, colour))
        _finish(axes, ends, round_axis, above=False)


def accuracy_by_bytes(comparison: Comparison, path: Path) -> None:
    """Mean accuracy against what a device has sent and received until then; the CSV beside it."""
    points = {line.method: byte_points(line) for line in comparison.lines}
    _write(path, BytesPoint._fields, points)
    subtitle = f"{_what(comparison)}{DOT}each line from the first to the last round, mean over seeds"
    with picture(path, WIDTH_IN, HEIGHT_IN, "Accuracy for its bytes", subtitle) as figure:
        axes = figure.add_subplot()
        ends = []
        for place, (method, row) in enumerate(points.items()):
            if row:
                colour, dashes = look(place)
                spent = [point.bytes_per_device for point in row]
                _line(axes, spent, [point.mean for point in row], colour, dashes)
                ends.append(_end(method, spent[-1], row[-1].mean, colour))
        _finish(axes, ends, _byte_axis, above=True)


def look(place: int) -> tuple[str, str]:
    """Colour and dashes of a line: grey for the devices alone, then the palette, again and again with other dashes."""
    if place == 0:
        return GREY, "--"
    return COLOURS[(place - 1) % len(COLOURS)], DASHES[(place - 1) // len(COLOURS) % len(DASHES)]


def round_points(line: Line) -> list[RoundPoint]:
    """For each round that all seeds measured: the mean, and a deviation to both sides.

    The deviation is that between the seeds; of one seed, the band goes from the worst to the best device.
    """
    curves = [trial.curve() for trial in line.trials]
    found = []
    for number in _shared(curves):
        values = [statistics.fmean(curve[number]) for curve in curves]
        mean = statistics.fmean(values)
        if len(values) > 1:
            deviation = statistics.stdev(values)
            low, high = mean - deviation, mean + deviation
        else:
            low, high = min(curves[0][number]), max(curves[0][number])
        found.append(RoundPoint(line.method, number, mean, low, high))
    return found


def byte_points(line: Line) -> list[BytesPoint]:
    """For each round that all seeds measured: bytes so far and accuracy, both as means over the seeds."""
    curves = [trial.curve() for trial in line.trials]
    spent = [trial.bytes_by_round() for trial in line.trials]
    return [
        BytesPoint(
            line.method,
            number,
            statistics.fmean([each[number] for each in spent]),
            statistics.fmean([statistics.fmean(curve[number]) for curve in curves]),
        )
        for number in _shared(curves)
    ]


def _shared(curves: Sequence[Mapping[int, object]]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves)))


def _write(path: Path, columns: Sequence[str], points: Mapping[str, Sequence[RoundPoint | BytesPoint]]) -> None:
    rows = [point._asdict() for row in points.values() for point in row]
    text_files.replace(path.with_suffix(".csv"), text_files.csv_text(columns, rows))


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, dashes: str) -> None:
    axes.plot(x, y, color=colour, linestyle=dashes, linewidth=2.2, marker="o", markevery=[-1], markersize=4.5)


def _end(method: str, x: float, value: float, colour: str) -> End:
    return End(x, value, f"{printable(method)} {percent(value)}", colour)


def _byte_axis(axes: Axes) -> None:
    """Methods differ by powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator  # noqa: PLC0415  # an optional package

    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    steps = (1.0,) if high >= _MANY_DECADES * low else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(MaxNLocator(4) if high < _ONE_STEP * low else LogLocator(subs=steps))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _position: human_bytes(value))
    axes.set_xlabel("sent and received by a device so far")


def _finish(axes: Axes, ends: Sequence[End], bottom: Callable[[Axes], None], *, above: bool) -> None:
    if ends:
        bottom(axes)
        accuracy_axis(axes)
        end_labels(axes, ends, above=above)
        return
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no accuracy was measured", ha="center", color=SOFT, transform=axes.transAxes)


def _what(comparison: Comparison) -> str:
    example = comparison.example
    seeds = f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}"
    methods = len([line for line in comparison.lines if line.method != ALONE])
    words = (
        example.federation,
        f"{methods} methods",
        f"{len(example.devices)} devices",
        f"{example.rounds} rounds",
        seeds,
    )
    return printable(DOT.join(words))
