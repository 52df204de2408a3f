"""Pictures of the accuracy of one or many methods: over rounds, over devices, and for what they cost.

Each picture has the CSV of its points beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coordinator.record.units import human_bytes, human_flops, human_joules, percent, printable
from coordinator.results.comparison.compare import ALONE, Comparison, MethodRuns, paper_name
from coordinator.results.figures.metrics import deviation
from coordinator.results.plots.drawing import (
    DOT,
    FAINT,
    HEADER_IN,
    HEIGHT_IN,
    INK,
    MOST_AT_ENDS,
    WIDTH_IN,
    LineStyle,
    accuracy_axis,
    draw_line,
    draw_nothing,
    heading,
    height_for_names,
    label_lines,
    legend_below,
    line_styles,
    picture,
    round_axis,
    seconds_axis,
    short,
    tick_percent,
    write_points,
)
from coordinator.results.plots.look import chosen_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND_ALPHA, FAINTEST_ALPHA, BAND_SUM = 0.14, 0.05, 0.45
"""The opacity of a band, that of many overlapping bands together, and the minimum of one."""
OWN_TASK_PANELS = (("amp", "AMP"), ("fm", "FM"), ("wlp", "WLP"))
UNMEASURED = "no accuracy was measured"
_PANEL_IN, _BOX_IN = 2.2, 0.5
_MANY_DECADES, _MANY_ON_PAPER, _ONE_STEP = 500.0, 20.0, 5.0
"""Ratios of most to fewest bytes: from the first on, only powers of ten are named, on paper from the second on; below
the third, even steps are."""
_WIDEST_PT, _NARROWEST_PT = 26.0, 5.0
"""Diameters of the markers of accuracy_for_its_cost."""


class RoundPoint(NamedTuple):
    """A row of accuracy_by_round.csv; `low` and `high` are the edges of the band."""

    method: str
    round: int
    mean: float
    low: float
    high: float
    measured: int
    """The devices that were measured, in the seed that has fewest."""


class OwnTaskPoint(NamedTuple):
    """A row of own_task_by_round.csv; means over the seeds."""

    method: str
    round: int
    amp: float
    fm: float | None
    """None, like wlp, where not all devices were measured."""
    wlp: float | None


class DevicePoint(NamedTuple):
    """A row of accuracy_of_devices.csv."""

    method: str
    seed: int
    device: str
    accuracy: float


class SpentPoint(NamedTuple):
    """A row of accuracy_by_bytes.csv, accuracy_by_time.csv and accuracy_by_energy.csv: means over the seeds.

    Costs are totals since the run began.
    """

    method: str
    round: int
    bytes_per_device: float
    """Bytes sent and received by a device, on average."""
    time_s: float
    device_j: float | None
    """Joules of all devices together, or None if unmeasured."""
    mean: float


class CostPoint(NamedTuple):
    """A row of accuracy_for_its_cost.csv, at the end of the run; means over the seeds."""

    method: str
    bytes_per_device: float
    device_flops: float | None
    """FLOPs of all devices together, or None if unmeasured."""
    mean: float


AnyPoint = TypeVar("AnyPoint", RoundPoint, OwnTaskPoint, SpentPoint)


# -- pictures -----------------------------------------------------------------------------------------------------


def accuracy_by_round(comparison: Comparison, path: Path) -> None:
    """Draw the mean accuracy over the learning devices by round: a line per method, with a band around it.

    A single run has a thin line for each device, too.
    """
    points = _by_method(comparison, round_points)
    _write(path, RoundPoint, points)
    alone = comparison.one_run and "personal" in comparison.shown_models
    counted = _measured_words(comparison, points)
    words = f"{_model_words(comparison)}{DOT}line: mean {counted}{DOT}band: {_band_words(comparison)}"
    tall_in = HEIGHT_IN if len(points) <= MOST_AT_ENDS else height_for_names(len(points))
    only_global = "personal" not in comparison.shown_models
    title = "Accuracy of the global model by round" if only_global else "Accuracy by round"
    words += f"{DOT}thin: each device's own" * alone
    error = comparison.lines[-1].trials[0].whole["accuracy"].get("sampling_error") if alone else None
    if error is not None:
        words += f"{DOT}own models of all devices: ± {100 * error:.1f} points at the end (95 %)"
    with picture(path, WIDTH_IN, tall_in, title, words, below=_named(points)) as figure:
        axes = figure.add_subplot()
        if alone:
            _draw_devices(axes, comparison)
        _draw_bands(axes, points)
        _draw_lines(axes, points, ("round", "mean"), round_axis, beside=False)


def own_task_by_round(comparison: Comparison, path: Path) -> None:
    """AMP, FM and WLP on the devices' own tasks by round, a panel for each that is known: of a sample only AMP is."""
    points = _by_method(comparison, own_task_points)
    _write(path, OwnTaskPoint, points)
    counted = _measured_words(comparison, _by_method(comparison, round_points))
    subtitle = f"{_model_words(comparison)}{DOT}on the devices' own tasks, {counted}{_over_seeds(comparison)}"
    rows = [point for row in points.values() for point in row]
    shown = [panel for panel in OWN_TASK_PANELS if any(getattr(row, panel[0]) is not None for row in rows)]
    tall_in = HEADER_IN + max(1, len(shown)) * _PANEL_IN - 0.6
    *first, last = (name for _, name in shown or OWN_TASK_PANELS)
    title = f"{', '.join(first)}{' and ' * bool(first)}{last} by round"
    with picture(path, WIDTH_IN, tall_in, title, subtitle, below=_named(points)) as figure:
        if not shown:
            draw_nothing(figure.add_subplot(), UNMEASURED)
            return
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (key, name) in zip(panels, shown, strict=True):
            for (method, row), style in _styled(points):
                known = [point for point in row if getattr(point, key) is not None]
                if known:
                    values = [getattr(point, key) for point in known]
                    draw_line(axes, [point.round for point in known], values, style, _line_name(method))
            round_axis(axes)
            axes.set_xlabel("round" if key == shown[-1][0] else "")
            axes.set_ylabel(name, color=INK, fontweight="bold")
            if key != "fm":
                axes.yaxis.set_major_formatter(tick_percent)
        if chosen_look().for_paper:
            legend_below(panels[0])
        else:
            figure.legend(handles=panels[0].get_lines(), loc="outside right center", labelcolor="linecolor")


def global_accuracy_by_round(comparison: Comparison, path: Path) -> None:
    """Draw the accuracy of the models that devices share."""
    _draw_shared(comparison, path, accuracy_by_round)


def global_own_task_by_round(comparison: Comparison, path: Path) -> None:
    """Draw AMP, FM and WLP of the models that devices share."""
    _draw_shared(comparison, path, own_task_by_round)


def global_accuracy_by_bytes(comparison: Comparison, path: Path) -> None:
    """Draw the accuracy of the models that devices share against bytes."""
    _draw_shared(comparison, path, accuracy_by_bytes)


def _draw_shared(comparison: Comparison, path: Path, draw: Callable[[Comparison, Path], None]) -> None:
    shared = comparison.of_shared_models()
    if shared is not None:
        draw(shared, path)


def shared_drawings(comparison: Comparison) -> tuple[Callable[[Comparison, Path], None], ...]:
    """Return the functions that draw models that devices share, where a method has one."""
    if comparison.of_shared_models() is None:
        return ()
    return (global_accuracy_by_round, global_own_task_by_round, global_accuracy_by_bytes)


def accuracy_by_bytes(comparison: Comparison, path: Path) -> None:
    """Draw mean accuracy against the bytes that a device has sent and received so far."""
    _by_cost(comparison, path, "Accuracy for its bytes", "bytes_per_device", _byte_axis)


def accuracy_by_time(comparison: Comparison, path: Path) -> None:
    """Draw mean accuracy against time: virtual time in a simulation, real time over a broker."""
    _by_cost(comparison, path, "Accuracy by time", "time_s", lambda axes: seconds_axis(axes, "time so far"))


def accuracy_by_energy(comparison: Comparison, path: Path) -> None:
    """Draw mean accuracy against the joules that all devices have used so far, where they were metered."""
    _by_cost(comparison, path, "Accuracy for its energy", "device_j", _energy_axis)


def cost_drawings(comparison: Comparison) -> tuple[Callable[[Comparison, Path], None], ...]:
    """Return the drawing functions for the costs that are known; joules are unknown over a broker."""
    by_energy = (accuracy_by_energy,) if "j" in comparison.metered else ()
    return (accuracy_by_bytes, accuracy_by_time, *by_energy)


def accuracy_of_devices(comparison: Comparison, path: Path) -> None:
    """The final accuracies of the learning devices, of all seeds together: quartiles, whiskers from end to end.

    A method without any has no row.
    """
    points = list(device_points(comparison))
    write_points(path, DevicePoint._fields, (point._asdict() for point in points))
    styles = line_styles(line.method for line in comparison.lines)
    found: dict[str, list[float]] = {}
    for point in points:
        found.setdefault(point.method, []).append(point.accuracy)
    subtitle = (
        f"{_model_words(comparison)}{DOT}box: quartiles{DOT}whiskers: worst to best{DOT}dots: newest of each device"
    )
    tall_in = max(HEIGHT_IN / 2, 1.2 + _BOX_IN * len(found))
    with picture(path, WIDTH_IN, tall_in, "Accuracy of the devices", subtitle) as figure:
        axes = figure.add_subplot()
        if not points:
            draw_nothing(axes, UNMEASURED)
            return
        for row, (method, values) in enumerate(found.items()):
            _draw_box(axes, row, values, styles[method].colour)
        axes.set_yticks(range(len(found)), [_line_name(method) for method in found])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(1.0, axes.get_xlim()[1]) + 0.005)
        axes.xaxis.set_major_formatter(tick_percent)
        if not chosen_look().titles:
            axes.set_xlabel("accuracy")
        axes.grid(visible=False, axis="y")


def accuracy_for_its_cost(comparison: Comparison, path: Path) -> None:
    """Final accuracy against bytes; the area of a marker is what the devices computed."""
    points = [point for line in comparison.lines if (point := cost_point(line))]
    write_points(path, CostPoint._fields, (point._asdict() for point in points))
    most = max([point.device_flops or 0 for point in points], default=0)
    area = f"{DOT}area: computing of all devices, at most {human_flops(most)}" if most else ""
    subtitle = f"{_model_words(comparison)}{DOT}newest of each device{area}"
    below = [_line_name(point.method) for point in points]
    tall_in = HEIGHT_IN if chosen_look().for_paper else height_for_names(len(points))
    with picture(path, WIDTH_IN, tall_in, "Accuracy for its cost", subtitle, below=below) as figure:
        axes = figure.add_subplot()
        if not points:
            draw_nothing(axes, UNMEASURED)
            return
        styles = line_styles(line.method for line in comparison.lines)
        for number, point in enumerate(sorted(points, key=lambda point: -point.mean), 1):
            share = (point.device_flops or 0) / most if most else 0.0
            _draw_marker(axes, number, point, styles[point.method], share)
        axes.margins(x=0.12, y=0.2)
        _byte_axis(axes)
        accuracy_axis(axes)
        if chosen_look().for_paper:
            legend_below(axes)
        else:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handletextpad=0.2)


def words_for(comparison: Comparison) -> str:
    """Return the first words of every subtitle, which say what was compared."""
    methods = (comparison.example.method,) if comparison.one_run else comparison.methods
    rounds = [trial.result.rounds for line in comparison.lines for trial in line.trials]
    return heading(comparison.example, methods, comparison.seeds, rounds)


# -- points -------------------------------------------------------------------------------------------------------


def round_points(line: MethodRuns) -> list[RoundPoint]:
    """Return the mean and the edges of its band for each round that all seeds measured.

    The band is one standard deviation over the seeds to both sides; for one seed, it is worst to best device.
    """
    curves = [trial.curve() for trial in line.trials]
    found = []
    for number in _shared(curves):
        values = [statistics.fmean(curve[number]) for curve in curves]
        mean = statistics.fmean(values)
        if len(values) > 1:
            band = deviation(values, of_sample=True)
            low, high = mean - band, mean + band
        else:
            low, high = min(curves[0][number]), max(curves[0][number])
        found.append(RoundPoint(line.method, number, mean, low, high, min(len(curve[number]) for curve in curves)))
    return found


def own_task_points(line: MethodRuns) -> list[OwnTaskPoint]:
    """Return the means over the seeds for each round that all seeds measured."""
    curves = [
        {
            entry.round: found
            for entry in trial.result.history
            if (found := trial.result.own_task(entry.of(trial.model, "local_accuracy")))
        }
        for trial in line.trials
    ]
    return [
        OwnTaskPoint(line.method, number, *_panel_means([curve[number] for curve in curves]))  # type: ignore[arg-type]  # AMP is always there
        for number in _shared(curves)
    ]


def _panel_means(curves: Sequence[Mapping[str, float]]) -> Iterator[float | None]:
    for key, _ in OWN_TASK_PANELS:
        yield _mean([curve.get(key) for curve in curves])


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is not known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def device_points(comparison: Comparison) -> Iterator[DevicePoint]:
    """The final accuracies of devices that learn, in runs that were completed."""
    for line in comparison.lines:
        for trial in line.trials:
            for device in trial.result.devices if trial.result.completed else ():
                if device.learns and device.accuracy is not None:
                    yield DevicePoint(line.method, trial.seed, device.id, device.accuracy)


def spent_points(line: MethodRuns) -> list[SpentPoint]:
    """Return accuracy and costs so far for each round that all seeds measured."""
    curves = [{point.round: point for point in trial.result.points(trial.model)} for trial in line.trials]
    return [
        SpentPoint(
            line.method,
            number,
            statistics.fmean([curve[number].bytes_per_device for curve in curves]),
            statistics.fmean([curve[number].time_s for curve in curves]),
            statistics.fmean([curve[number].device_j for curve in curves]) or None,
            statistics.fmean([curve[number].accuracy for curve in curves]),
        )
        for number in _shared(curves)
    ]


def cost_point(line: MethodRuns) -> CostPoint | None:
    """Return the cost of the completed runs at their end, or None without completed runs."""
    accuracy = line.accuracy("mean")
    spent = line.over_seeds(lambda trial: _bytes_per_device(trial.whole["bytes"], len(trial.result.devices)))
    flops = line.over_seeds(lambda trial: trial.whole["work"].get("device_flops_total"))
    if accuracy is None or spent is None:
        return None
    return CostPoint(line.method, spent.mean, flops.mean if flops else None, accuracy.mean)


def _bytes_per_device(totals: Mapping[str, float], devices: int) -> float:
    return (totals["up_total"] + totals["down_total"]) / max(1, devices)


def _shared(curves: Sequence[Mapping[int, object]]) -> list[int]:
    """The rounds that all seeds measured."""
    return sorted(set.intersection(*(set(curve) for curve in curves)))


def _by_method(comparison: Comparison, points: Callable[[MethodRuns], list[AnyPoint]]) -> dict[str, list[AnyPoint]]:
    """Return the points by method."""
    return {line.method: points(line) for line in comparison.lines}


def _write(path: Path, kind: type[AnyPoint], points: Mapping[str, Sequence[AnyPoint]]) -> None:
    write_points(path, kind._fields, (point._asdict() for row in points.values() for point in row))


# -- parts of pictures --------------------------------------------------------------------------------------------


def _styled(points: Mapping[str, list[AnyPoint]]) -> Iterator[tuple[tuple[str, list[AnyPoint]], LineStyle]]:
    """Each method that has points, with its line style; the devices alone first, behind the others."""
    for method, style in line_styles(points).items():
        if row := points.get(method):
            yield (method, row), style


def _draw_lines(
    axes: Axes,
    points: Mapping[str, list[AnyPoint]],
    keys: tuple[str, str],
    bottom: Callable[[Axes], object],
    *,
    beside: bool,
) -> None:
    """A line for each method with points, x and y by the names of their fields, and the names of the lines."""
    ends = []
    for (method, row), style in _styled(points):
        x, y = ([getattr(point, key) for point in row] for key in keys)
        words = _line_name(method) if chosen_look().for_paper else f"{printable(method)} {percent(y[-1])}"
        ends.append(draw_line(axes, x, y, style, words))
    if not ends:
        draw_nothing(axes, UNMEASURED)
        return
    bottom(axes)
    accuracy_axis(axes)
    label_lines(axes, ends, beside=beside)


def _named(points: Mapping[str, Sequence[object]]) -> list[str]:
    """The names of the lines that a picture has."""
    return [_line_name(method) for method, row in points.items() if row]


def _line_name(method: str) -> str:
    """The name of a line: on the screen as users type it, in a paper as its own paper writes it."""
    return paper_name(method) if chosen_look().for_paper else short(method)


def _draw_bands(axes: Axes, points: Mapping[str, list[RoundPoint]]) -> None:
    """A band for each line, fainter the more there are, with a thin edge by which each can be followed."""
    alpha = max(FAINTEST_ALPHA, min(BAND_ALPHA, BAND_SUM / max(1, sum(map(bool, points.values())))))
    for (_, row), style in _styled(points):
        edges = [point.low for point in row], [point.high for point in row]
        x = [point.round for point in row]
        axes.fill_between(x, *edges, color=style.colour, alpha=alpha, linewidth=0)
        for edge in edges:
            axes.plot(x, edge, color=style.colour, alpha=0.35, linewidth=0.5, label="_edge")


def _draw_devices(axes: Axes, comparison: Comparison) -> None:
    """A thin line for the personal model of each learning device of the only run."""
    line = next(line for line in comparison.lines if line.method != ALONE and line.trials[0].model == "personal")
    result, style = line.trials[0].result, line_styles(each.method for each in comparison.lines)[line.method]
    alpha = max(0.15, min(0.6, 1.6 / math.sqrt(max(len(result.learners), 1))))
    for device in sorted(result.learners):
        measured = [(entry.round, entry.accuracy[device]) for entry in result.history if device in entry.accuracy]
        if measured:
            axes.plot(*zip(*measured, strict=True), color=style.colour, alpha=alpha, linewidth=0.7)


def _band_words(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    return "worst to best device" if seeds == 1 else f"\N{PLUS-MINUS SIGN} sd over {seeds} seeds"


def _model_words(comparison: Comparison) -> str:
    """The first words of a subtitle, and which models are shown; lines of several models say it in their names."""
    shown = comparison.shown_models
    which = (
        f"{DOT}the devices' own models"
        if shown == {"personal"}
        else ""
        if "personal" in shown
        else f"{DOT}global models"
    )
    return f"{words_for(comparison)}{which}"


def _measured_words(comparison: Comparison, points: Mapping[str, Sequence[RoundPoint]]) -> str:
    """Describe over how many devices a point is a mean: all, or the minimum and maximum of the learning ones."""
    counts = [point.measured for row in points.values() for point in row]
    every = max([trial.learners for line in comparison.lines for trial in line.trials], default=0)
    if not counts or min(counts) == every:
        return f"over all {every} devices"
    span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    sampled = any("measured" in trial.result.card for line in comparison.lines for trial in line.trials)
    return f"over the {span} of {every:,} devices that were measured{', drawn by the seed' * sampled}"


def _over_seeds(comparison: Comparison) -> str:
    """Describe how a line combines several seeds; empty for one seed."""
    return f", mean over {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""


def _by_cost(comparison: Comparison, path: Path, title: str, key: str, bottom: Callable[[Axes], object]) -> None:
    points = _by_method(comparison, spent_points)
    _write(path, SpentPoint, points)
    known = {method: [point for point in row if getattr(point, key)] for method, row in points.items()}
    counted = _measured_words(comparison, _by_method(comparison, round_points))
    subtitle = f"{_model_words(comparison)}{DOT}mean {counted}, by evaluated round{_over_seeds(comparison)}"
    tall_in = HEIGHT_IN if chosen_look().for_paper else height_for_names(len(points))
    with picture(path, WIDTH_IN, tall_in, title, subtitle, below=_named(known)) as figure:
        _draw_lines(figure.add_subplot(), known, (key, "mean"), bottom, beside=True)


def _draw_box(axes: Axes, row: int, values: Sequence[float], colour: str) -> None:
    line = {"color": colour, "linewidth": 1.2}
    axes.boxplot(
        [values],
        positions=[row],
        widths=0.55,
        whis=(0, 100),
        patch_artist=True,
        boxprops={"facecolor": FAINT, "edgecolor": colour, "linewidth": 1.2},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": colour, "linewidth": 2.4},
        orientation="horizontal",
    )
    axes.scatter(values, [row] * len(values), s=9, color=colour, alpha=0.5, linewidth=0, zorder=3)


def _draw_marker(axes: Axes, number: int, point: CostPoint, style: LineStyle, share: float) -> None:
    """A numbered marker whose area is `share` of the largest, and its entry in the legend."""
    paper = chosen_look().for_paper
    width_pt = max(_NARROWEST_PT, _WIDEST_PT * math.sqrt(share)) * (0.5 if paper else 1.0)
    shape: Any = {"color": style.colour, "marker": style.marker or "o", "linewidth": 0}
    axes.scatter(point.bytes_per_device, point.mean, s=width_pt**2, alpha=0.7, **shape)
    name = _line_name(point.method)
    axes.scatter(
        [], [], s=14 if paper else 36, label=f"{number}  {name}" + f" {percent(point.mean)}" * (not paper), **shape
    )
    axes.annotate(
        str(number),
        (point.bytes_per_device, point.mean),
        xytext=(0, width_pt / 2 + 1),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=6.5 if paper else 7.5,
        fontweight="bold",
        color=style.colour,
    )


def _energy_axis(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _position: human_joules(value) if value else "0")
    axes.set_xlabel("drawn by all devices so far")


def _byte_axis(axes: Axes) -> None:
    """Make the axis of bytes logarithmic: methods differ by powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator  # an optional package

    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    many = _MANY_ON_PAPER if chosen_look().for_paper else _MANY_DECADES
    steps = (1.0,) if high >= many * low else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(MaxNLocator(3) if high < _ONE_STEP * low else LogLocator(subs=steps))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _position: human_bytes(value))
    axes.set_xlabel("sent and received by a device so far")
