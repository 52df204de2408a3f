"""Pictures of a run with more devices than fit in rows: how many devices have which figure, as histograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.record.units import human_bytes, percent
from coordinator.results.figures.metrics import quantiles
from coordinator.results.figures.result import Result
from coordinator.results.plots.drawing import (
    BLUE,
    DOT,
    GREY,
    HEIGHT_IN,
    INK,
    ORANGE,
    SOFT,
    WIDTH_IN,
    class_label,
    draw_nothing,
    heading,
    label_step,
    picture,
    tick_percent,
    write_points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LISTED = 100
"""Maximum number of devices with a row each in a picture; more are drawn as histograms."""
BINS = 40
BIN_COLUMNS = ("figure", "from", "to", "devices")
CLASS_COLUMNS = ("class", "samples", "devices")
_CLASS_IN = 0.44


def accuracy_of_many(result: Result, path: Path) -> None:
    """How many devices have which accuracy, alone and federated."""
    devices = result.devices
    lines = {
        "alone": (GREY, [each.standalone_accuracy for each in devices if each.standalone_accuracy is not None]),
        "federated": (BLUE, [each.accuracy for each in devices if each.accuracy is not None]),
    }
    measured = len(lines["federated"][1])
    subtitle = f"{_words(result)}{DOT}{measured:,} were measured"
    points: list[dict[str, object]] = []
    with picture(path, WIDTH_IN, HEIGHT_IN, "Accuracy of the devices", subtitle) as figure:
        axes = figure.add_subplot()
        if not measured:
            draw_nothing(axes, "no device was measured")
        for name, (colour, values) in lines.items():
            if values:
                points += _histogram(axes, name, values, colour, (0.0, 1.0))
        if measured:
            _mark_quantiles(axes, lines["federated"][1], percent)
            axes.set_xlim(0, 1)
            axes.xaxis.set_major_formatter(tick_percent)
            _count_axis(axes, "accuracy of the device's own model")
            axes.legend(loc="upper right", bbox_to_anchor=(1, 1.12), ncols=2, borderaxespad=0)
    write_points(path, BIN_COLUMNS, points)


def bytes_of_many(result: Result, path: Path) -> None:
    """How many devices sent and received how many bytes over the run."""
    ways = (
        ("sent", ORANGE, [each.bytes_up for each in result.devices]),
        ("received", BLUE, [each.bytes_down for each in result.devices]),
    )
    points: list[dict[str, object]] = []
    with picture(path, WIDTH_IN, HEIGHT_IN, "Bytes by direction", _words(result)) as figure:
        for axes, (name, colour, counts) in zip(figure.subplots(1, 2, sharey=True), ways, strict=True):
            points += _histogram(axes, name, counts, colour)
            _mark_quantiles(axes, counts, human_bytes)
            axes.locator_params(axis="x", nbins=3)
            axes.xaxis.set_major_formatter(lambda value, _position: human_bytes(value))
            _count_axis(axes, f"{name}: {human_bytes(sum(counts))} in all")
    write_points(path, BIN_COLUMNS, points)


def holdings_of_many(result: Result, path: Path) -> None:
    """How many devices hold how many samples, and of how many classes."""
    shown = (
        ("samples", BLUE, [each.samples for each in result.devices]),
        ("classes", ORANGE, [len(each.classes) for each in result.devices if each.class_counts]),
    )
    points: list[dict[str, object]] = []
    with picture(path, WIDTH_IN, HEIGHT_IN, "Who holds what", _words(result)) as figure:
        for axes, (name, colour, counts) in zip(figure.subplots(1, 2, sharey=True), shown, strict=True):
            if not counts:
                draw_nothing(axes, "withheld by the owners")
                continue
            points += _histogram(axes, name, counts, colour)
            _mark_quantiles(axes, counts, "{:.0f}".format)
            axes.locator_params(axis="x", integer=True)
            _count_axis(axes, f"{name} on a device")
    write_points(path, BIN_COLUMNS, points)


def classes_of_many(result: Result, path: Path) -> None:
    """How many samples of each class there are, and how many devices hold some."""
    samples: Counter[int] = Counter()
    holders: Counter[int] = Counter()
    for device in result.devices:
        for label, count in enumerate(device.class_counts):
            samples[label] += count
            holders[label] += count > 0
    labels = sorted(samples)
    rows = ({"class": label, "samples": samples[label], "devices": holders[label]} for label in labels)
    write_points(path, CLASS_COLUMNS, rows)
    with picture(path, WIDTH_IN, HEIGHT_IN, "Samples by class", _words(result)) as figure:
        shown = (("samples", BLUE, samples), ("devices that hold it", ORANGE, holders))
        for axes, (name, colour, counts) in zip(figure.subplots(2, 1, sharex=True), shown, strict=True):
            if not labels:
                draw_nothing(axes, "withheld by the owners")
                continue
            axes.bar(labels, [counts[label] for label in labels], width=0.62, color=colour)
            axes.set_ylabel(name)
            axes.yaxis.set_major_formatter(_whole)
            ticks = labels[:: label_step(len(labels), _CLASS_IN)]
            axes.set_xticks(ticks, [class_label(each, result.class_names) for each in ticks])
            axes.grid(visible=False, axis="x")


BY_DEVICE: Mapping[str, Callable[[Result, Path], None]] = {
    "devices_alone_federated": accuracy_of_many,
    "bytes_by_direction": bytes_of_many,
    "who_holds_what": holdings_of_many,
    "samples_by_class": classes_of_many,
}
"""Histograms in place of the pictures with a row for each device, by the names of these."""


def _words(result: Result) -> str:
    return heading(result, (result.method,), (result.seed,))


def _histogram(
    axes: Axes, name: str, values: Sequence[float], colour: str, limits: tuple[float, float] | None = None
) -> list[dict[str, object]]:
    """Draw how many devices have which value; returns the points of the CSV.

    limits: of the first and the last bin, or None for those of the values.  Few whole numbers get a bin each.
    """
    low, high = limits or (min(values), max(values))
    if limits is None and high - low < BINS and all(isinstance(each, int) for each in values):
        margin = int(high == low)  # a single bin has no width to be seen
        edges = np.arange(low - margin, high + margin + 2) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts, _ = np.histogram(values, edges)
    axes.stairs(counts, edges, fill=True, color=colour, alpha=0.75, label=name)
    return [
        {"figure": name, "from": float(first), "to": float(last), "devices": int(count)}
        for first, last, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def _mark_quantiles(axes: Axes, values: Sequence[float], say: Callable[[float], str]) -> None:
    """Draw a line at the value that half of the devices are below, and thinner ones at a tenth and nine tenths."""
    found = quantiles(values)
    for share, value in (("10 %", found.low), ("half", found.middle), ("90 %", found.high)):
        half = share == "half"
        axes.axvline(value, color=INK if half else SOFT, linewidth=1.2 if half else 0.8, linestyle="-" if half else ":")
    text = f"half up to {say(found.middle)}\na tenth up to {say(found.low)}, a tenth from {say(found.high)}"
    axes.set_title(text, loc="left", fontsize=7, color=SOFT)


def _count_axis(axes: Axes, below: str) -> None:
    axes.set_xlabel(below)
    axes.set_ylabel("devices")
    axes.label_outer(remove_inner_ticks=False)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_whole)
    axes.grid(visible=False, axis="x")


def _whole(value: float, _position: float) -> str:
    return f"{value:,.0f}"
