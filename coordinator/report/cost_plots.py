"""Accuracy for what it costs: bytes, time and computing, each picture with the CSV behind it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coordinator.report.canvas import DOT, picture, short
from coordinator.report.comparison import Comparison, Line
from coordinator.report.comparison_canvas import (
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
from coordinator.report.lines import accuracy_axis, seconds_axis
from coordinator.report.units import human_bytes, human_flops, human_joules, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MANY_DECADES, _ONE_STEP = 500.0, 5.0
"""Ratios of most to fewest: from the one on only powers of ten are named, below the other even steps are."""
_WIDEST_PT, _NARROWEST_PT = 26.0, 5.0


class SpentPoint(NamedTuple):
    """A row of accuracy_by_bytes.csv, accuracy_by_time.csv and accuracy_by_energy.csv.

    Since the run began, means over the seeds.
    """

    method: str
    round: int
    bytes_per_device: float
    """Sent and received."""
    time_s: float
    device_j: float | None
    """Of all devices together; None where nobody metered them."""
    mean: float


class CostPoint(NamedTuple):
    """A row of accuracy_for_its_cost.csv, at the end of the run; means over the seeds."""

    method: str
    bytes_per_device: float
    device_flops: float | None
    """Of all devices together; None where nobody metered them."""
    mean: float


def over_costs(comparison: Comparison) -> tuple[Callable[[Comparison, Path], None], ...]:
    """The pictures of accuracy against what is known of its costs; over a broker nobody knows the joules."""
    by_energy = (accuracy_by_energy,) if "j" in comparison.metered else ()
    return (accuracy_by_bytes, accuracy_by_time, *by_energy)


def accuracy_by_bytes(comparison: Comparison, path: Path) -> None:
    """Mean accuracy against what a device has sent and received until then."""
    _by_spent(comparison, path, "Accuracy for its bytes", "bytes_per_device", _byte_axis)


def accuracy_by_time(comparison: Comparison, path: Path) -> None:
    """Mean accuracy against time: on the boards' clock in a simulation, on the wall's over a broker."""
    _by_spent(comparison, path, "Accuracy by time", "time_s", _time_axis)


def accuracy_by_energy(comparison: Comparison, path: Path) -> None:
    """Mean accuracy against the joules that all devices drew until then, where somebody metered them."""
    _by_spent(comparison, path, "Accuracy for its energy", "device_j", _energy_axis)


def accuracy_for_its_cost(comparison: Comparison, path: Path) -> None:
    """Final accuracy against bytes; the area of a marker is what the devices computed."""
    points = [point for line in comparison.lines if (point := cost_point(line))]
    write_points(path, CostPoint._fields, (point._asdict() for point in points))
    most = max([point.device_flops or 0 for point in points], default=0)
    area = f"{DOT}area: computing of all devices, at most {human_flops(most)}" if most else ""
    tall_in = height_in(len(points))
    with picture(
        path, WIDTH_IN, tall_in, "Accuracy for its cost", f"{what(comparison)}{DOT}newest of each device{area}"
    ) as figure:
        axes = figure.add_subplot()
        if not points:
            nothing(axes, "no accuracy was measured")
            return
        styles = looks(line.method for line in comparison.lines)
        for number, point in enumerate(sorted(points, key=lambda point: -point.mean), 1):
            colour, share = styles[point.method].colour, (point.device_flops or 0) / most if most else 0.0
            width_pt = max(_NARROWEST_PT, _WIDEST_PT * math.sqrt(share))
            axes.scatter(point.bytes_per_device, point.mean, s=width_pt**2, color=colour, alpha=0.7, linewidth=0)
            words = f"{number}  {short(point.method)} {percent(point.mean)}"
            axes.scatter([], [], s=36, color=colour, linewidth=0, label=words)
            axes.annotate(
                str(number),
                (point.bytes_per_device, point.mean),
                xytext=(0, width_pt / 2 + 1),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7.5,
                fontweight="bold",
                color=colour,
            )
        axes.margins(x=0.12, y=0.2)
        _byte_axis(axes)
        accuracy_axis(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handletextpad=0.2)


def spent_points(line: Line) -> list[SpentPoint]:
    """For each round that all seeds measured."""
    curves = [{point.round: point for point in trial.result.points()} for trial in line.trials]
    return [
        SpentPoint(
            line.method,
            number,
            statistics.fmean([curve[number].bytes_per_device for curve in curves]),
            statistics.fmean([curve[number].time_s for curve in curves]),
            statistics.fmean([curve[number].device_j for curve in curves]) or None,
            statistics.fmean([curve[number].accuracy for curve in curves]),
        )
        for number in shared(curves)
    ]


def cost_point(line: Line) -> CostPoint | None:
    """The whole of each run that came to its end; None without any."""
    accuracy = line.accuracy("mean")
    spent = line.over_seeds(lambda trial: _whole_bytes(trial.whole["bytes"], len(trial.result.devices)))
    flops = line.over_seeds(lambda trial: trial.whole["work"].get("device_flops_total"))
    if accuracy is None or spent is None:
        return None
    return CostPoint(line.method, spent.mean, flops.mean if flops else None, accuracy.mean)


def _whole_bytes(totals: dict[str, float], devices: int) -> float:
    return (totals["up_total"] + totals["down_total"]) / max(1, devices)


def _by_spent(comparison: Comparison, path: Path, title: str, key: str, bottom: Callable[[Axes], None]) -> None:
    points = {line.method: spent_points(line) for line in comparison.lines}
    write_points(path, SpentPoint._fields, (point._asdict() for row in points.values() for point in row))
    subtitle = f"{what(comparison)}{DOT}mean of those measured, by evaluated round{over_seeds(comparison)}"
    with picture(path, WIDTH_IN, height_in(len(points)), title, subtitle) as figure:
        axes = figure.add_subplot()
        ends = []
        for method, of in looks(points).items():
            row = [point for point in points.get(method, []) if getattr(point, key)]
            if row:
                spent = [getattr(point, key) for point in row]
                ends.append(end(method, spent[-1], row[-1].mean, of))
                draw_line(axes, spent, [point.mean for point in row], of, ends[-1].words)
        finish(axes, ends, bottom, beside=True)


def _time_axis(axes: Axes) -> None:
    seconds_axis(axes, "time so far")


def _energy_axis(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _position: human_joules(value) if value else "0")
    axes.set_xlabel("drawn by all devices so far")


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
