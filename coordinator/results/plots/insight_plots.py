"""Pictures of models at the end of a run: predictions, prototypes, features; a panel for each method that has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coordinator.record.units import percent
from coordinator.results.comparison.compare import paper_name
from coordinator.results.figures.insight import Insight
from coordinator.results.plots.drawing import (
    COLOURS,
    DOT,
    HEADER_IN,
    INK,
    MARKERS,
    MOST_IN,
    SOFT,
    Drawings,
    class_label,
    legend_below,
    picture,
    short,
    write_points,
)
from coordinator.results.plots.look import chosen_look
from edge_sdk.arrays import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

PANEL_IN, BESIDE_IN = 3.3, 0.5
"""The side of a panel, and the width of the scale or legend at its right."""
_PAPER_PANEL_IN = 1.7
"""The least width of a panel in a picture for a paper."""
NARROWEST_IN = 5.6
"""The width that the heading needs."""
COLUMNS = 3
LUMINANCE = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue by Rec. 709, to write in white on dark cells."""
MOST_WRITTEN = 12
"""The most classes with which cells have numbers."""
MOST_TICKS = 20
MOST_PAIRS = 4
"""The most methods with a row of feature panels each; with more, two methods share a row."""
CLASS_GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "cifar10": (
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (0, 1, 8, 9, 2, 3, 4, 5, 6, 7),
    ),
}
"""Names of the classes, and an order that keeps related classes together, for data sets with groups of classes."""


class MethodInsight(NamedTuple):
    """The insight into one method's models at the end of a run."""

    method: str
    data: str
    """The name of the data set."""
    insight: Insight
    class_names: tuple[str, ...] = ()


class PredictionPoint(NamedTuple):
    """A row of public_predictions.csv."""

    method: str
    true_class: int
    predicted_class: int
    probability: float


class CosinePoint(NamedTuple):
    """A row of prototype_cosines.csv."""

    method: str
    class_: int
    other_class: int
    cosine: float


class FeaturePoint(NamedTuple):
    """A row of features.csv; x and y are the first two principal components."""

    method: str
    device: int
    class_: int
    x: float
    y: float


def insight_drawings(insights: Sequence[MethodInsight], what: str) -> Drawings:
    """The pictures for which any method has data; `what` begins each subtitle."""
    pictures: tuple[tuple[Callable[[Sequence[MethodInsight], str, Path], None], str], ...] = (
        (public_predictions, "predictions"),
        (prototype_cosines, "prototypes"),
        (features, "points"),
    )
    having = {part: [each for each in insights if getattr(each.insight, part) is not None] for _, part in pictures}
    return {draw.__name__: partial(draw, having[part], what) for draw, part in pictures if having[part]}


def public_predictions(insights: Sequence[MethodInsight], what: str, path: Path) -> None:
    """The mean prediction of all devices on the public samples of each true class, as in FedAL's figure 2."""
    write_points(path, PredictionPoint._fields, (p._asdict() for each in insights for p in prediction_points(each)))
    with _panels(
        path, len(insights), "What devices predict for public samples", f"{what}{DOT}mean over devices"
    ) as made:
        for axes, each in zip(made, insights, strict=True):
            matrix = each.insight.part("predictions")  # (k, k)
            right = float(np.diag(matrix).sum() / max(1, int((matrix.sum(axis=1) > 0).sum())))
            image = _heat(
                axes,
                matrix,
                [class_label(label, each.class_names) for label in range(len(matrix))],
                low=0.0,
                colours="Blues",
            )
            _heading(axes, each.method, f"true class {percent(right)}")
            axes.set_xlabel("predicted class")
            axes.set_ylabel("true class")
        _scale(image, 0.0)


def prototype_cosines(insights: Sequence[MethodInsight], what: str, path: Path) -> None:
    """The cosine of each pair of prototypes at the end of a run; classes of one group stand together."""
    write_points(path, CosinePoint._fields, (p._asdict() for each in insights for p in cosine_points(each)))
    with _panels(path, len(insights), "Cosines of prototypes", f"{what}{DOT}blue: alike, red: opposite") as made:
        for axes, each in zip(made, insights, strict=True):
            classes, rows = each.insight.part("prototype_classes"), each.insight.part("prototypes")
            order, names = in_groups(each.data, classes, each.class_names)
            image = _heat(axes, cosines(rows[order]), names, low=-1.0, colours="RdBu")
            _heading(axes, each.method, f"{len(classes)} classes")
        _scale(image, -1.0)


def features(insights: Sequence[MethodInsight], what: str, path: Path) -> None:
    """Features of the same test samples on several devices, on two components: by class, and by device."""
    write_points(path, FeaturePoint._fields, (p._asdict() for each in insights for p in feature_points(each)))
    subtitle = f"{what}{DOT}two principal components; left by class, right by device"
    columns = 2 if len(insights) <= MOST_PAIRS else 4
    groups = _groups(insights) if chosen_look().for_paper else []
    with _panels(path, 2 * len(insights), "Features of test samples", subtitle, columns, below=groups) as made:
        for left, right, each in zip(made[::2], made[1::2], insights, strict=True):
            insight = each.insight
            points = insight.part("points")
            shares = " + ".join(percent(float(share)) for share in insight.part("explained"))
            _heading(left, each.method, f"{shares} of the variance")
            _scatter(left, points, insight.part("point_classes"), "class", each.class_names)
            _scatter(right, points, insight.part("point_devices"), "device")
            if _all_alike(insight):
                _heading(right, each.method, "one model on all devices")
        if groups:
            legend_below(made[0], _examples(made), title="class, and in the panels on the right device")


def prediction_points(one: MethodInsight) -> Iterator[PredictionPoint]:
    """A point for each cell."""
    matrix = one.insight.part("predictions")
    for true, predicted in np.ndindex(*matrix.shape):
        yield PredictionPoint(one.method, true, predicted, float(matrix[true, predicted]))


def cosine_points(one: MethodInsight) -> Iterator[CosinePoint]:
    """A point for each pair of prototypes, in the order of class ids."""
    classes, matrix = one.insight.part("prototype_classes"), cosines(one.insight.part("prototypes"))
    for a, b in np.ndindex(*matrix.shape):
        yield CosinePoint(one.method, int(classes[a]), int(classes[b]), float(matrix[a, b]))


def feature_points(one: MethodInsight) -> Iterator[FeaturePoint]:
    """A point for each sample on each device."""
    insight = one.insight
    rows = zip(insight.part("point_devices"), insight.part("point_classes"), insight.part("points"), strict=True)
    for device, label, (x, y) in rows:
        yield FeaturePoint(one.method, int(device), int(label), float(x), float(y))


def in_groups(data: str, classes: Ints, own_names: Sequence[str] = ()) -> tuple[list[int], list[str]]:
    """The order in which rows of these classes (m,) are drawn, as indices, and the names of the classes."""
    names, order = CLASS_GROUPS.get(data, ((), ()))
    if not names or not {*map(int, classes)} <= {*order}:
        return list(range(len(classes))), [class_label(int(label), own_names) for label in classes]
    places = sorted(range(len(classes)), key=lambda place: order.index(int(classes[place])))
    return places, [names[int(classes[place])] for place in places]


def _groups(insights: Sequence[MethodInsight]) -> list[str]:
    """The numbers of all classes and devices with points in the picture."""
    parts = [each.insight.part(name) for each in insights for name in ("point_classes", "point_devices")]
    return [str(group) for group in np.unique(np.concatenate(parts))]


def _examples(panels: Sequence[Axes]) -> dict[str, Artist]:
    """One drawn point for each group of any panel, by the group's number."""
    found: dict[str, Artist] = {}
    for panel in panels:
        handles, names = panel.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    return {name: found[name] for name in sorted(found, key=int)}


@contextmanager
def _panels(
    path: Path, count: int, title: str, subtitle: str, columns: int = COLUMNS, *, below: Sequence[str] = ()
) -> Iterator[list[Axes]]:
    """A picture with a grid of `count` equal panels."""
    look = chosen_look()
    columns = min(look.columns(_PAPER_PANEL_IN, columns), count)
    rows = math.ceil(count / columns)
    if look.width_in is None:
        side_in = min(PANEL_IN, (MOST_IN - HEADER_IN) / rows)
        width_in = max(NARROWEST_IN, (side_in + BESIDE_IN) * columns)
    else:
        width_in = look.width_in
        side_in = width_in / columns
    with picture(path, width_in, HEADER_IN + side_in * rows, title, subtitle, below=below) as figure:
        made = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for unused in made[count:]:
            unused.set_axis_off()
        yield made[:count]


def _all_alike(insight: Insight) -> bool:
    """Whether all devices have the same features, so that the last drawn covers the others."""
    devices, points = insight.part("point_devices"), insight.part("points")
    first, *others = (points[devices == number] for number in np.unique(devices))
    return bool(others) and all(np.allclose(first, other, atol=1e-4) for other in others)


def _heading(axes: Axes, method: str, words: str) -> None:
    name = paper_name(method) if chosen_look().for_paper else short(method)
    title = f"{name}\n{words}" if chosen_look().for_paper else f"{name}{DOT}{words}"
    axes.set_title(title, loc="left", fontsize=7 if chosen_look().for_paper else 8.5, color=INK)


def _heat(axes: Axes, matrix: Floats, names: Sequence[str], *, low: float, colours: str) -> AxesImage:
    """Draw a matrix of values between `low` and 1 as coloured cells."""
    image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=1.0, interpolation="nearest")
    axes.set_anchor("W")
    step = math.ceil(len(names) / (MOST_TICKS / 2 if chosen_look().for_paper else MOST_TICKS))
    turned = max(map(len, names), default=0) > 3
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=90 if turned else 0, fontsize=7.5)
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=7.5)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    luminance = image.to_rgba(matrix)[:, :, :3] @ np.array(LUMINANCE)  # (m, m)
    written = len(names) <= MOST_WRITTEN and not chosen_look().for_paper
    for row, column in np.ndindex(*matrix.shape) if written else ():
        value = float(matrix[row, column])
        dark = float(luminance[row, column]) < 0.6
        words = f"{value:.2f}".replace("0.", ".", 1)
        colour = "white" if dark else SOFT
        cell = axes.text(column, row, words, ha="center", va="center", fontsize=5.5, color=colour)
        cell.set_in_layout(False)  # it lies inside: measuring each would take most of the time
    return image


def _scale(image: AxesImage, low: float) -> None:
    """Draw the scale of the colours beside the last panel."""
    bar = image.axes.inset_axes((1.03, 0.0, 0.035, 1.0))
    bar.figure.colorbar(image, cax=bar, ticks=[low, (low + 1) / 2, 1.0])
    bar.tick_params(labelsize=7)
    bar.grid(visible=False)


def _scatter(axes: Axes, points: Floats, groups: Ints, what: str, names: Sequence[str] = ()) -> None:
    """Draw points (n, 2) in a colour and a shape for each group (n,)."""
    found = np.unique(groups)
    paper = chosen_look().for_paper  # its legend is for all panels, whose groups have the same numbers
    for group in map(int, found):
        mine = points[groups == group]  # (m, 2)
        shape: Any = {"color": _colour(group, int(found[-1]) + 1), "marker": MARKERS[group % len(MARKERS)]}
        label = str(group) if paper else class_label(group, names)
        axes.scatter(mine[:, 0], mine[:, 1], s=4 if paper else 9, alpha=0.65, linewidth=0, label=label, **shape)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    if paper:
        return
    axes.legend(
        title=what,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        ncols=math.ceil(len(found) / MOST_TICKS),
        borderaxespad=0.3,
        handletextpad=0,
        markerscale=1.8,
        fontsize=7.5,
        title_fontsize=7.5,
    )


def _colour(place: int, count: int) -> Any:
    """One of `count` colours: of the palette, at most twice; of more, along a scale that is even to the eye."""
    if count <= 2 * len(COLOURS):
        return COLOURS[place % len(COLOURS)]
    from matplotlib import colormaps  # an optional package: only where a picture is drawn

    return colormaps["viridis"](0.95 * place / (count - 1))


def cosines(prototypes: Floats) -> Floats:
    """The cosine of each pair of rows, (m, d) -> (m, m); 0 for a row of zeros."""
    rows = prototypes.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # (m, 1)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    found: Floats = (units @ units.T).astype(np.float32)
    return found
