"""The pictures of a comparison, each with the CSV behind it: over rounds, over devices, and for what they cost."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from coordinator.report.canvas import DOT, FAINT, INK, draw_each, picture, pictures_in, short
from coordinator.report.comparison import Comparison, Line
from coordinator.report.comparison_canvas import (
    HEIGHT_IN,
    MOST_AT_ENDS,
    WIDTH_IN,
    draw_line,
    end,
    finish,
    height_in,
    looks,
    nothing,
    over_seeds,
    shared,
    what,
    write_points,
)
from coordinator.report.cost_plots import accuracy_for_its_cost, over_costs
from coordinator.report.insight_plots import Seen, draw_insights
from coordinator.report.lines import round_axis, tick_percent

MOST_BANDS = 3
"""Bands that can be told apart where they lie on each other; with more lines there are none."""
_PANEL_IN = 2.2
_BOX_IN = 0.5
OWN_TASK = (("amp", "AMP"), ("fm", "FM"), ("wlp", "WLP"))


class RoundPoint(NamedTuple):
    """A row of accuracy_by_round.csv."""

    method: str
    round: int
    mean: float
    low: float
    high: float


class OwnTaskPoint(NamedTuple):
    """A row of own_task_by_round.csv; means over the seeds."""

    method: str
    round: int
    amp: float
    fm: float
    wlp: float


class DevicePoint(NamedTuple):
    """A row of accuracy_of_devices.csv."""

    method: str
    seed: int
    device: str
    accuracy: float


def draw_comparison(comparison: Comparison, directory: str | os.PathLike[str]) -> list[Path]:
    """Draw every picture into `directory` and return the PNG files.

    Raises MissingExtra without matplotlib, StoreError where the pictures cannot be written.
    """
    with pictures_in(directory) as folder:
        drawings: tuple[Callable[[Comparison, Path], None], ...] = (
            accuracy_by_round,
            own_task_by_round,
            accuracy_of_devices,
            *over_costs(comparison),
            accuracy_for_its_cost,
        )
        paths = draw_each(comparison, drawings, folder)
        which = f", here {comparison.seeds[0]}" if len(comparison.seeds) > 1 else ""
        return [*paths, *draw_insights(_seen(comparison), f"{what(comparison)}{which}", folder)]


def _seen(comparison: Comparison) -> list[Seen]:
    """Of the first seed; of a run that never began there are only models that nobody trained."""
    firsts = [(line.method, line.trials[0].result) for line in comparison.lines]
    return [
        Seen(name, run.data.get("name", ""), run.insight)
        for name, run in firsts
        if run.insight is not None and run.rounds_done
    ]


def accuracy_by_round(comparison: Comparison, path: Path) -> None:
    """Mean accuracy of the learning devices by round: a line and a band for each method."""
    points = {line.method: round_points(line) for line in comparison.lines}
    write_points(path, RoundPoint._fields, (point._asdict() for row in points.values() for point in row))
    band = f"\N{PLUS-MINUS SIGN} sd over {len(comparison.seeds)} seeds"
    if len(comparison.seeds) == 1:
        band = "worst to best device"
    banded = sum(bool(row) for row in points.values()) <= MOST_BANDS
    spread = f"{'band' if banded else 'in the CSV'}: {band}"
    subtitle = f"{what(comparison)}{DOT}line: mean of those measured, {spread}"
    tall_in = HEIGHT_IN if len(points) <= MOST_AT_ENDS else height_in(len(points))
    with picture(path, WIDTH_IN, tall_in, "Accuracy by round", subtitle) as figure:
        axes = figure.add_subplot()
        ends = []
        for method, of in looks(points).items():
            if row := points.get(method):
                rounds = [point.round for point in row]
                if banded:
                    low, high = [point.low for point in row], [point.high for point in row]
                    axes.fill_between(rounds, low, high, color=of.colour, alpha=0.12, linewidth=0)
                ends.append(end(method, rounds[-1], row[-1].mean, of))
                draw_line(axes, rounds, [point.mean for point in row], of, ends[-1].words)
        finish(axes, ends, round_axis, beside=False)


def own_task_by_round(comparison: Comparison, path: Path) -> None:
    """AMP, FM and WLP by round, on each device's own task: FedKF's three figures, one above the other."""
    points = {line.method: own_task_points(line) for line in comparison.lines}
    write_points(path, OwnTaskPoint._fields, (point._asdict() for row in points.values() for point in row))
    subtitle = f"{what(comparison)}{DOT}on the devices' own tasks{over_seeds(comparison)}"
    tall_in = height_in(len(points), HEIGHT_IN + _PANEL_IN)
    with picture(path, WIDTH_IN, tall_in, "AMP, FM and WLP by round", subtitle) as figure:
        if not any(points.values()):
            nothing(figure.add_subplot(), "no accuracy was measured")
            return
        panels = figure.subplots(len(OWN_TASK), 1, sharex=True)
        for axes, (key, name) in zip(panels, OWN_TASK, strict=True):
            for method, of in looks(points).items():
                if row := points.get(method):
                    values = [getattr(point, key) for point in row]
                    draw_line(axes, [point.round for point in row], values, of, short(method))
            round_axis(axes)
            axes.set_xlabel("round" if key == OWN_TASK[-1][0] else "")
            axes.set_ylabel(name, color=INK, fontweight="bold")
            if key != "fm":
                axes.yaxis.set_major_formatter(tick_percent)
        figure.legend(handles=panels[0].get_lines(), loc="outside right center", labelcolor="linecolor")


def accuracy_of_devices(comparison: Comparison, path: Path) -> None:
    """The final accuracies of the learning devices, of all seeds together: quartiles, whiskers from end to end.

    A method without any has no row.
    """
    points = list(device_points(comparison))
    write_points(path, DevicePoint._fields, (point._asdict() for point in points))
    styles = looks(line.method for line in comparison.lines)
    methods = list(dict.fromkeys(point.method for point in points))
    found = {name: [point.accuracy for point in points if point.method == name] for name in methods}
    subtitle = f"{what(comparison)}{DOT}box: quartiles, whiskers: worst to best, dots: the newest of each device"
    tall_in = max(HEIGHT_IN / 2, 1.2 + _BOX_IN * len(methods))
    with picture(path, WIDTH_IN, tall_in, "Accuracy of the devices", subtitle) as figure:
        axes = figure.add_subplot()
        if not points:
            nothing(axes, "no accuracy was measured")
            return
        for row, (method, values) in enumerate(found.items()):
            colour = styles[method].colour
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
        axes.set_yticks(range(len(methods)), [short(method) for method in methods])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(1.0, axes.get_xlim()[1]) + 0.005)
        axes.xaxis.set_major_formatter(tick_percent)
        axes.grid(visible=False, axis="y")


def round_points(line: Line) -> list[RoundPoint]:
    """For each round that all seeds measured: the mean, and a deviation to both sides.

    The deviation is that between the seeds; of one seed, the band goes from the worst to the best device.
    """
    curves = [trial.curve() for trial in line.trials]
    found = []
    for number in shared(curves):
        values = [statistics.fmean(curve[number]) for curve in curves]
        mean = statistics.fmean(values)
        if len(values) > 1:
            deviation = statistics.stdev(values)
            low, high = mean - deviation, mean + deviation
        else:
            low, high = min(curves[0][number]), max(curves[0][number])
        found.append(RoundPoint(line.method, number, mean, low, high))
    return found


def own_task_points(line: Line) -> list[OwnTaskPoint]:
    """For each round that all seeds measured: means over the seeds."""
    curves = [
        {entry.round: found for entry in trial.result.history if (found := trial.result.own_task(entry.local_accuracy))}
        for trial in line.trials
    ]
    return [
        OwnTaskPoint(
            line.method, number, *(statistics.fmean([curve[number][key] for curve in curves]) for key, _ in OWN_TASK)
        )
        for number in shared(curves)
    ]


def device_points(comparison: Comparison) -> Iterator[DevicePoint]:
    """The final accuracies of devices that learn, in runs that came to their end."""
    for line in comparison.lines:
        for trial in line.trials:
            for device in trial.result.devices if trial.result.completed else ():
                if device.learns and device.accuracy is not None:
                    yield DevicePoint(line.method, trial.seed, device.id, device.accuracy)
