"""The pictures of a run."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from coordinator.report.canvas import (
    BLUE,
    DOT,
    GREY,
    MOST_IN,
    ORANGE,
    SOFT,
    bar_labels,
    device_axis,
    draw_each,
    every,
    height_in,
    picture,
    pictures_in,
    rows_of,
    short,
)
from coordinator.report.comparison import Comparison, Line, Trial
from coordinator.report.comparison_canvas import write_points
from coordinator.report.comparison_plots import own_task_by_round
from coordinator.report.cost_plots import over_costs
from coordinator.report.insight_plots import Seen, draw_insights
from coordinator.report.lines import End, accuracy_axis, end_labels, round_axis, tick_percent
from coordinator.report.result import DeviceResult, Result, RoundResult
from coordinator.report.units import human_bytes, percent, printable
from coordinator.report.waiting_plot import who_was_waited_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 7.2
_BYTES_ROW_IN = 0.3
_CLASS_IN = 0.44
_WIDEST_BUBBLE_PT = 25.0
_HEAT_ROW_IN = 0.28
CLASS_COLUMNS = ("device", "class", "samples")
_Held = TypedDict("_Held", {"device": str, "class": int, "samples": int})
"""A row of the CSV beside the pictures of devices and classes; a device whose owner withholds its counts has none."""


def draw_all(result: Result, directory: str | os.PathLike[str]) -> list[Path]:
    """Draw every picture into `directory` and return the files.

    Raises MissingExtra without matplotlib, StoreError where the pictures cannot be written.
    """
    with pictures_in(directory) as folder:
        drawings: tuple[Callable[[Result, Path], None], ...] = (
            accuracy_by_round,
            devices_alone_federated,
            bytes_by_direction,
            who_holds_what,
            samples_by_class,
            who_was_waited_for,
        )
        paths = draw_each(result, drawings, folder)
        only = Comparison((Line(result.method, (Trial(result.seed, result),)),), result.method)
        paths += draw_each(only, (own_task_by_round, *over_costs(only)), folder)
        if result.insight is not None:
            paths += draw_insights(
                [Seen(result.method, result.data.get("name", ""), result.insight)], _run(result), folder
            )
        return paths


def accuracy_by_round(result: Result, path: Path) -> None:
    """Accuracy of the learning devices by round: mean, range and each device, and the same devices alone."""
    subtitle = f"{_run(result)}{DOT}line: mean of those measured, band: worst to best, thin: each device"
    with picture(path, WIDTH_IN, 4.4, "Accuracy by round", subtitle) as figure:
        axes = figure.add_subplot()
        _device_lines(axes, result)
        lines = ((result.standalone_history, "alone", GREY, "--"), (result.history, "federated", BLUE, "-"))
        ends = [
            _mean_line(axes, learned, word, colour, dashes)
            for history, word, colour, dashes in lines
            if (learned := _learned(result, history))
        ]
        if ends:
            round_axis(axes)
            accuracy_axis(axes)
            end_labels(axes, ends)
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no accuracy was measured", ha="center", color=SOFT, transform=axes.transAxes)


def devices_alone_federated(result: Result, path: Path) -> None:
    """Accuracy of each device alone and federated, with its model and runtime."""
    devices, which = rows_of(result.devices, _accuracy, "least accurate")
    subtitle = f"{_run(result)}{which}"
    with picture(path, WIDTH_IN, height_in(len(devices)), "Accuracy of each device", subtitle) as figure:
        axes = figure.add_subplot()
        lines = [("federated", BLUE, [device.accuracy for device in devices])]
        if result.standalone_history or any(device.standalone_accuracy is not None for device in devices):
            lines.insert(0, ("alone", GREY, [device.standalone_accuracy for device in devices]))
        for (word, colour, values), offset in zip(lines, (-0.2, 0.2) if len(lines) == 2 else (0.0,), strict=True):
            rows = [row + offset for row in range(len(devices))]
            axes.barh(rows, [value or 0 for value in values], height=0.36, color=colour, label=word)
            bar_labels(axes, values, offset, percent)
        device_axis(axes, devices, _model)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(tick_percent)
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0, handlelength=0.9, handleheight=0.9
        )


def bytes_by_direction(result: Result, path: Path) -> None:
    """Bytes that each device sent and received over the run."""
    devices, which = rows_of(result.devices, lambda device: -(device.bytes_up + device.bytes_down), "with most of them")
    ways = (
        ("sent", ORANGE, [device.bytes_up for device in devices], sum(each.bytes_up for each in result.devices)),
        ("received", BLUE, [device.bytes_down for device in devices], sum(each.bytes_down for each in result.devices)),
    )
    most = max([count for _, _, counts, _ in ways for count in counts], default=0)
    size_in = height_in(len(devices), _BYTES_ROW_IN, 0.8)
    subtitle = f"{_run(result)}{which}"
    with picture(path, WIDTH_IN, size_in, "Bytes by device and direction", subtitle) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, (word, colour, counts, total) in zip((left, right), ways, strict=True):
            axes.barh(range(len(devices)), counts, height=0.62, color=colour)
            axes.set_xlim(0, 1.25 * max(most, 4))
            axes.locator_params(axis="x", nbins=3)
            axes.xaxis.set_major_formatter(lambda value, _position: human_bytes(value))
            heading = f"{word}: {human_bytes(total)} in all"
            axes.set_title(heading, loc="left", color=colour, fontsize=9, fontweight="bold")
            bar_labels(axes, counts, 0, human_bytes)
        device_axis(left, devices)
        right.spines["left"].set_visible(False)
        right.grid(visible=False, axis="y")


def who_holds_what(result: Result, path: Path) -> None:
    """Samples of each class on each device, as bubbles whose area is their number; the CSV beside it."""
    devices, which = rows_of(result.devices, lambda device: -device.samples, "with most samples")
    write_points(path, CLASS_COLUMNS, _held(_by_number(result)))
    classes = max([len(device.class_counts) for device in devices], default=0)
    wanted_in = (2.6 + _CLASS_IN * classes, height_in(len(devices)))
    width_in = min(MOST_IN, max(5.6, wanted_in[0]))
    subtitle = f"{_run(result)}{which}{DOT}area: samples of a class"
    with picture(path, width_in, wanted_in[1], "Who holds what", subtitle) as figure:
        axes = figure.add_subplot()
        device_axis(axes, devices)
        axes.set_xlim(-0.6, max(classes, 1) - 0.4)
        axes.set_xticks(range(0, classes, every(classes, _CLASS_IN)))
        axes.set_xlabel("class")
        axes.grid(visible=True)
        axes.spines["bottom"].set_visible(False)
        _bubbles(axes, devices, _WIDEST_BUBBLE_PT * min(1.0, width_in / wanted_in[0]))


def samples_by_class(result: Result, path: Path) -> None:
    """Samples of each class on each device, as a heat map with the number in every cell; the CSV beside it."""
    devices, which = rows_of(result.devices, lambda device: -device.samples, "with most samples")
    write_points(path, CLASS_COLUMNS, _held(_by_number(result)))
    classes = max([len(device.class_counts) for device in devices], default=0)
    width_in = min(MOST_IN, max(5.6, 2.2 + _CLASS_IN * classes))
    subtitle = f"{_run(result)}{which}{DOT}darker: more samples"
    with picture(path, width_in, height_in(len(devices), _HEAT_ROW_IN), "Samples by class", subtitle) as figure:
        axes = figure.add_subplot()
        device_axis(axes, devices)
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlim(-0.5, max(classes, 1) - 0.5)
        axes.set_ylim(max(len(devices), 1) - 0.5, -0.5)
        axes.set_xticks(range(0, classes, every(classes, _CLASS_IN)))
        axes.set_xlabel("class")
        counts = [[*device.class_counts, *[0] * (classes - len(device.class_counts))] for device in devices]
        most = max([count for row in counts for count in row], default=0)
        if most:
            axes.imshow(counts, cmap="Blues", vmin=0, vmax=most, aspect="auto", interpolation="nearest")
        written = every(classes, _CLASS_IN) == 1
        for row, device in enumerate(devices):
            if not device.class_counts:
                axes.text(-0.4, row, "withheld by its owner", va="center", fontsize=7.5, color=SOFT, fontstyle="italic")
            for label, count in enumerate(device.class_counts if written else ()):
                colour = "white" if count > most / 2 else SOFT
                axes.text(label, row, str(count), ha="center", va="center", fontsize=7, color=colour)


def _held(devices: Sequence[DeviceResult]) -> list[_Held]:
    return [
        {"device": device.id, "class": label, "samples": count}
        for device in devices
        for label, count in enumerate(device.class_counts)
    ]


def _run(result: Result) -> str:
    done = "" if result.completed else f"{result.rounds_done} of "
    rounds, devices = done + _count(result.rounds, "round"), _count(len(result.devices), "device")
    words = (result.federation, result.method, devices, rounds, f"seed {result.seed}")
    return printable(DOT.join(words))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _by_number(result: Result) -> list[DeviceResult]:
    return sorted(result.devices, key=lambda device: device.number)


def _accuracy(device: DeviceResult) -> float:
    """Who was not measured comes last."""
    return math.inf if device.accuracy is None else device.accuracy


def _model(device: DeviceResult) -> str:
    role = "never joined" if not device.joined else "" if device.learns else "teaches only"
    words = [short(device.model), short(device.runtime), role]
    return DOT.join(word for word in words if word)


def _device_lines(axes: Axes, result: Result) -> None:
    alpha = max(0.15, min(0.6, 1.6 / math.sqrt(max(len(result.learners), 1))))
    for device in sorted(result.learners):
        measured = [(entry.round, entry.accuracy[device]) for entry in result.history if device in entry.accuracy]
        if measured:
            axes.plot(*zip(*measured, strict=True), color=BLUE, alpha=alpha, linewidth=0.7)


def _learned(result: Result, history: Sequence[RoundResult]) -> dict[int, list[float]]:
    """The accuracies of the learning devices by round, where there are any."""
    rounds = {
        entry.round: [value for device, value in entry.accuracy.items() if device in result.learners]
        for entry in history
    }
    return {number: values for number, values in rounds.items() if values}


def _mean_line(axes: Axes, learned: dict[int, list[float]], word: str, colour: str, dashes: str) -> End:
    """Draw the mean and the range over the devices; give the end of the line and what to write there."""
    rounds, means = list(learned), [statistics.fmean(values) for values in learned.values()]
    low, high = [min(values) for values in learned.values()], [max(values) for values in learned.values()]
    axes.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.plot(rounds, means, color=colour, linestyle=dashes, linewidth=2.2, marker="o", markevery=[-1], markersize=4.5)
    return End(rounds[-1], means[-1], f"{word} {percent(means[-1])}", colour)


def _bubbles(axes: Axes, devices: Sequence[DeviceResult], widest_pt: float) -> None:
    numbers = {device.id: row for row, device in enumerate(devices)}
    held = [(each["class"], numbers[each["device"]], each["samples"]) for each in _held(devices) if each["samples"]]
    most = max([count for _, _, count in held], default=1)
    areas = [widest_pt**2 * count / most for _, _, count in held]
    axes.scatter([x for x, _, _ in held], [y for _, y, _ in held], s=areas, color=BLUE, linewidth=0)
    for row, device in enumerate(devices):
        if not device.class_counts:
            axes.text(-0.4, row, "withheld by its owner", va="center", fontsize=7.5, color=SOFT, fontstyle="italic")
    for count in _examples(most) if held else ():
        axes.scatter([], [], s=widest_pt**2 * count / most, color=BLUE, linewidth=0, label=str(count))
    if held:
        axes.legend(
            title="samples",
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            labelspacing=1.8,
            handletextpad=1.0,
            borderpad=0.8,
        )


def _examples(most: int) -> list[int]:
    """Up to three round numbers not above `most`, the largest first."""
    top = _round_down(most)
    return sorted({top, max(1, _round_down(top // 2)), max(1, _round_down(top // 5))}, reverse=True)


def _round_down(count: int) -> int:
    """The largest 1, 2 or 5 times a power of ten that is not above `count`; 0 of 0."""
    if count < 1:
        return 0
    power = int("1" + "0" * (len(str(count)) - 1))
    return max(step * power for step in (1, 2, 5) if step * power <= count)
