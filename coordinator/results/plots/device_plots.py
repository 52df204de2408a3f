"""Pictures of a run with a row for each device: accuracy, bytes, samples of each class, and waiting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from coordinator.record.units import human_bytes, percent
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.plots.drawing import (
    BLUE,
    DOT,
    GREY,
    HEADER_IN,
    INK,
    MOST_IN,
    ORANGE,
    SOFT,
    WIDTH_IN,
    bar_labels,
    class_label,
    heading,
    label_step,
    picture,
    seconds_axis,
    short,
    tick_percent,
    write_points,
)
from coordinator.results.plots.look import chosen_look
from edge_sdk.class_names import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 30
"""The most devices in a picture; the CSV beside it has all."""
MOST_WAITS = 20
"""The most bars of who_was_waited_for."""
LEAST_WAIT_S = 1e-3
"""Shorter waits are not drawn: in a simulation they are the time of a few bytes."""
LONGEST_WAIT_NAME = 48
"""Characters that name a bar of who_was_waited_for: the device, its link and its board."""
CLASS_COLUMNS = ("device", "class", "samples")
WAIT_COLUMNS = ("device", "board", "link", "waited_s", "rounds")
_ROW_IN, _NARROW_ROW_IN, _CLASS_IN = 0.44, 0.28, 0.44
_BYTES_ROW_IN = 0.3
_WIDEST_BUBBLE_PT = 25.0
_NARROWEST_IN = 5.6
ClassCount = TypedDict("ClassCount", {"device": str, "class": int, "samples": int})
"""A row of who_holds_what.csv and samples_by_class.csv; none for a device whose owner withholds its counts."""


# -- pictures -----------------------------------------------------------------------------------------------------


def devices_alone_federated(result: Result, path: Path) -> None:
    """Accuracy of each device alone and federated, with its model and runtime."""
    devices, which = _shown(result.devices, _accuracy, "least accurate")
    with picture(path, WIDTH_IN, _height_in(len(devices)), "Accuracy of each device", _words(result) + which) as figure:
        axes = figure.add_subplot()
        lines = [("federated", BLUE, [device.accuracy for device in devices])]
        if result.standalone_history or any(device.standalone_accuracy is not None for device in devices):
            lines.insert(0, ("alone", GREY, [device.standalone_accuracy for device in devices]))
        for (word, colour, values), offset in zip(lines, (-0.2, 0.2) if len(lines) == 2 else (0.0,), strict=True):
            rows = [row + offset for row in range(len(devices))]
            axes.barh(rows, [value or 0 for value in values], height=0.36, color=colour, label=word)
            if not chosen_look().for_paper:  # two rows of figures do not fit beside two bars there
                bar_labels(axes, values, offset, percent)
        _device_axis(axes, devices, _model)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(tick_percent)
        if not chosen_look().titles:
            axes.set_xlabel("accuracy")
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0, handlelength=0.9, handleheight=0.9
        )


def bytes_by_direction(result: Result, path: Path) -> None:
    """Bytes that each device sent and received over the run."""
    devices, which = _shown(result.devices, lambda device: -(device.bytes_up + device.bytes_down), "with most of them")
    ways = (
        ("sent", ORANGE, [device.bytes_up for device in devices], sum(each.bytes_up for each in result.devices)),
        ("received", BLUE, [device.bytes_down for device in devices], sum(each.bytes_down for each in result.devices)),
    )
    most = max([count for _, _, counts, _ in ways for count in counts], default=0)
    tall_in = _height_in(len(devices), _BYTES_ROW_IN, 0.8)
    with picture(path, WIDTH_IN, tall_in, "Bytes by device and direction", _words(result) + which) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        paper = chosen_look().for_paper
        for axes, (word, colour, counts, total) in zip((left, right), ways, strict=True):
            axes.barh(range(len(devices)), counts, height=0.62, color=colour)
            axes.set_xlim(0, 1.25 * max(most, 4))
            axes.locator_params(axis="x", nbins=2 if paper else 3)
            axes.xaxis.set_major_formatter(lambda value, _position: human_bytes(value))
            title = word if paper else f"{word}: {human_bytes(total)} in all"
            axes.set_title(title, loc="left", color=colour, fontsize=7 if paper else 9, fontweight="bold")
            bar_labels(axes, counts, 0, human_bytes)
        _device_axis(left, devices)
        right.spines["left"].set_visible(False)
        right.grid(visible=False, axis="y")


def who_holds_what(result: Result, path: Path) -> None:
    """Samples of each class on each device, as bubbles whose area is their number."""
    devices, which = _shown(result.devices, lambda device: -device.samples, "with most samples")
    _write_counts(path, result)
    classes = _classes(devices)
    wanted_in = 2.6 + _CLASS_IN * classes
    width_in = min(MOST_IN, max(_NARROWEST_IN, wanted_in))
    subtitle = f"{_words(result)}{which}{DOT}area: samples of a class"
    with picture(path, width_in, _height_in(len(devices)), "Who holds what", subtitle) as figure:
        axes = figure.add_subplot()
        _device_axis(axes, devices)
        _class_axis(axes, classes, result.class_names, edge=0.6)
        axes.grid(visible=True)
        narrower = (chosen_look().width_in or width_in) / width_in
        _draw_bubbles(axes, devices, _WIDEST_BUBBLE_PT * min(1.0, width_in / wanted_in, narrower))


def samples_by_class(result: Result, path: Path) -> None:
    """Samples of each class on each device, as a heat map with the number in every cell."""
    devices, which = _shown(result.devices, lambda device: -device.samples, "with most samples")
    _write_counts(path, result)
    classes = _classes(devices)
    width_in = min(MOST_IN, max(_NARROWEST_IN, 2.2 + _CLASS_IN * classes))
    subtitle = f"{_words(result)}{which}{DOT}darker: more samples"
    with picture(path, width_in, _height_in(len(devices), _NARROW_ROW_IN), "Samples by class", subtitle) as figure:
        axes = figure.add_subplot()
        _device_axis(axes, devices)
        _class_axis(axes, classes, result.class_names, edge=0.5)
        axes.grid(visible=False)
        axes.set_ylim(max(len(devices), 1) - 0.5, -0.5)
        _draw_counts(axes, devices, classes)


def has_waits(result: Result) -> bool:
    """Whether a round waited for a device long enough to draw it."""
    return any(device.waited_s >= LEAST_WAIT_S for device in result.devices)


def who_was_waited_for(result: Result, path: Path) -> None:
    """Seconds for which exchanges stayed open because of a device, and in how many rounds it was the longest wait."""
    longest = Counter(entry.waited_for for entry in result.history)
    ordered = sorted(result.devices, key=lambda device: (-device.waited_s, device.number))
    write_points(path, WAIT_COLUMNS, ({**_wait(device), "rounds": longest[device.id]} for device in ordered))
    shown = [device for device in ordered if device.waited_s >= LEAST_WAIT_S][:MOST_WAITS]
    which = f"{DOT}the {len(shown)} waited for longest"
    tall_in = 1.5 + _NARROW_ROW_IN * max(len(shown), 2)
    with picture(path, WIDTH_IN, tall_in, "Who was waited for", _words(result) + which) as figure:
        axes = figure.add_subplot()
        waits_s = [device.waited_s for device in shown]
        axes.barh(range(len(shown)), waits_s, height=0.62, color=ORANGE)
        names = (DOT.join(map(short, filter(None, (device.id, device.link, device.board)))) for device in shown)
        axes.set_yticks(range(len(shown)), [short(name, LONGEST_WAIT_NAME) for name in names], fontsize=8)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 * max(waits_s))
        as_ticked = seconds_axis(axes, "waited for, over the whole run")
        axes.grid(visible=False, axis="y")
        bar_labels(axes, waits_s, 0, as_ticked)


# -- parts of pictures --------------------------------------------------------------------------------------------


def _words(result: Result) -> str:
    return heading(result, (result.method,), (result.seed,))


def _shown(
    devices: Sequence[DeviceResult], key: Callable[[DeviceResult], float], words: str
) -> tuple[list[DeviceResult], str]:
    """The devices that a picture shows, and what its subtitle says about that.

    All are shown, by number.  Of more than MOST_ROWS, only those with the lowest `key` are shown; `words` describe it.
    """
    ordered = _by_number(devices)
    if len(ordered) <= MOST_ROWS:
        return ordered, ""
    return sorted(ordered, key=key)[:MOST_ROWS], f"{DOT}here the {MOST_ROWS} {words}"


def _by_number(devices: Sequence[DeviceResult]) -> list[DeviceResult]:
    return sorted(devices, key=lambda device: device.number)


def _height_in(rows: int, row_in: float = _ROW_IN, frame_in: float = 0.6) -> float:
    return HEADER_IN + frame_in + row_in * max(rows, 2)


def _device_axis(
    axes: Axes, devices: Sequence[DeviceResult], detail: Callable[[DeviceResult], str] | None = None
) -> None:
    """Name the devices down the left side, with a smaller second line where `detail` gives one."""
    axes.set_yticks(range(len(devices)), [""] * len(devices))
    axes.set_ylim(len(devices) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    for row, device in enumerate(devices):
        paper = chosen_look().for_paper
        lines = [(short(device.id), 7 if paper else 8.5, INK)]
        if detail is not None and not paper:
            lines.append((detail(device), 7, SOFT))
        rises = (0.0,) if len(lines) == 1 else (5.0, -5.5)
        for (words, size, colour), rise_pt in zip(lines, rises, strict=True):
            axes.annotate(
                words,
                (0, row),
                xycoords=("axes fraction", "data"),
                xytext=(-7, rise_pt),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=size,
                color=colour,
            )


def _class_axis(axes: Axes, classes: int, names: Sequence[str], *, edge: float) -> None:
    axes.set_xlim(-edge, max(classes, 1) - 1 + edge)
    shown = range(0, classes, label_step(classes, _CLASS_IN))
    axes.set_xticks(shown, [class_label(each, names) for each in shown], rotation=45 if names else 0)
    axes.set_xlabel("class")
    axes.spines["bottom"].set_visible(False)


def _classes(devices: Sequence[DeviceResult]) -> int:
    return max([len(device.class_counts) for device in devices], default=0)


def _write_counts(path: Path, result: Result) -> None:
    """Write the points of a picture of the classes; where these have names, in a column of their own."""
    rows, names = _class_counts(_by_number(result.devices)), result.class_names
    if names:
        named = ({**row, "name": name_of(row["class"], names)} for row in rows)
        write_points(path, (*CLASS_COLUMNS, "name"), named)
    else:
        write_points(path, CLASS_COLUMNS, rows)


def _class_counts(devices: Sequence[DeviceResult]) -> Iterator[ClassCount]:
    for device in devices:
        for label, count in enumerate(device.class_counts):
            yield {"device": device.id, "class": label, "samples": count}


def _wait(device: DeviceResult) -> Mapping[str, object]:
    return {"device": device.id, "board": device.board, "link": device.link, "waited_s": device.waited_s}


def _accuracy(device: DeviceResult) -> float:
    """Return the accuracy as a sort key; devices without accuracy come last."""
    return math.inf if device.accuracy is None else device.accuracy


def _model(device: DeviceResult) -> str:
    role = "never joined" if not device.joined else "" if device.learns else "teaches only"
    words = [short(device.model), short(device.runtime), role]
    return DOT.join(word for word in words if word)


def _mark_withheld(axes: Axes, devices: Sequence[DeviceResult]) -> None:
    """Say where an owner withholds the class counts."""
    for row, device in enumerate(devices):
        if not device.class_counts:
            axes.text(-0.4, row, "withheld by its owner", va="center", fontsize=7.5, color=SOFT, fontstyle="italic")


def _draw_bubbles(axes: Axes, devices: Sequence[DeviceResult], widest_pt: float) -> None:
    _mark_withheld(axes, devices)
    rows = {device.id: row for row, device in enumerate(devices)}
    held = [
        (each["class"], rows[each["device"]], each["samples"]) for each in _class_counts(devices) if each["samples"]
    ]
    if not held:
        return
    most = max(count for _, _, count in held)
    areas = [widest_pt**2 * count / most for _, _, count in held]
    axes.scatter([x for x, _, _ in held], [y for _, y, _ in held], s=areas, color=BLUE, linewidth=0)
    for count in example_counts(most):
        axes.scatter([], [], s=widest_pt**2 * count / most, color=BLUE, linewidth=0, label=str(count))
    axes.legend(
        title="samples", loc="upper left", bbox_to_anchor=(1.01, 1), labelspacing=1.8, handletextpad=1.0, borderpad=0.8
    )


def _draw_counts(axes: Axes, devices: Sequence[DeviceResult], classes: int) -> None:
    _mark_withheld(axes, devices)
    counts = [[*device.class_counts, *[0] * (classes - len(device.class_counts))] for device in devices]
    most = max([count for row in counts for count in row], default=0)
    if most:
        axes.imshow(counts, cmap="Blues", vmin=0, vmax=most, aspect="auto", interpolation="nearest")
    if label_step(classes, _CLASS_IN) > 1:
        return
    for row, device in enumerate(devices):
        for label, count in enumerate(device.class_counts):
            colour = "white" if count > most / 2 else SOFT
            cell = axes.text(label, row, str(count), ha="center", va="center", fontsize=7, color=colour)
            cell.set_in_layout(False)  # it lies inside: measuring each would take most of the time


def example_counts(most: int) -> list[int]:
    """Up to three round numbers not above `most`, the largest first, for a legend."""
    top = _round_down(most)
    return sorted({top, max(1, _round_down(top // 2)), max(1, _round_down(top // 5))}, reverse=True)


def _round_down(count: int) -> int:
    """The largest 1, 2 or 5 times a power of ten that is not above `count`; 0 of 0."""
    if count < 1:
        return 0
    power = int("1" + "0" * (len(str(count)) - 1))
    return max(step * power for step in (1, 2, 5) if step * power <= count)
