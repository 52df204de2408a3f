"""What line charts share: rounds along the bottom, accuracies up the side, and each line named at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from coordinator.report.units import duration_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_SHARE = 0.06
"""Height of a line's name, as a share of the picture's."""


class End(NamedTuple):
    """Where a line ends, and its name."""

    x: float
    value: float
    words: str
    colour: str


def round_axis(axes: Axes) -> None:
    """Rounds are whole numbers."""
    first, last = axes.dataLim.intervalx
    margin = max(0.4, 0.02 * (last - first))
    axes.set_xlim(max(0.5, first - margin), last + margin)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlabel("round")
    axes.grid(visible=False, axis="x")


def accuracy_axis(axes: Axes) -> None:
    """Accuracies lie between 0 and 1."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0, low), min(1, high))
    axes.yaxis.set_major_formatter(tick_percent)


def seconds_axis(axes: Axes, words: str) -> Callable[[float], str]:
    """Durations from 0 on along the bottom, up to where the axis ends, all in one unit: that of the longest.

    Gives how it writes a number of seconds.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # an optional package: only where a picture is drawn

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
    """A share as an axis writes it."""
    return f"{round(100 * value, 2):g} %"


def end_labels(axes: Axes, ends: Sequence[End]) -> None:
    """Name each line at its end, to the right; names never touch."""
    low, high = axes.get_ylim()
    heights = apart([end.value for end in ends], LABEL_SHARE * (high - low))
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


def names_beside(axes: Axes, ends: Sequence[End]) -> None:
    """Name the lines to the right of the picture, the highest first: for lines that end in the midst of others."""
    lines = {line.get_label(): line for line in axes.get_lines()}
    ordered = sorted(ends, key=lambda end: -end.value)
    axes.legend(
        [lines[end.words] for end in ordered],
        [end.words for end in ordered],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
        labelcolor="linecolor",
    )


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Places near the values, in their order, and at least `gap` from each other.

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
