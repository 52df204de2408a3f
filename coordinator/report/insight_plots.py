"""Pictures of what models hold at the end: predictions, prototypes, features; a panel for each method that has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coordinator.report.canvas import DOT, HEADER_IN, INK, MOST_IN, SOFT, picture, short
from coordinator.report.comparison_canvas import COLOURS, write_points
from coordinator.report.insight import Floats, Insight, Ints, cosines
from coordinator.report.units import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

PANEL_IN, BESIDE_IN = 3.3, 0.5
"""A panel, and what stands at its right: a scale or a legend."""
NARROWEST_IN = 5.6
"""What the heading needs."""
COLUMNS = 3
LUMINANCE = (0.2126, 0.7152, 0.0722)
"""Of red, green and blue, after Rec. 709: what is written on a dark cell is white."""
MOST_WRITTEN = 12
"""Classes up to which every cell has its number."""
MOST_TICKS = 20
MOST_PAIRS = 4
"""Methods up to which each has a row of its own for its two panels of features."""
CLASS_GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "cifar10": (
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (0, 1, 8, 9, 2, 3, 4, 5, 6, 7),
    ),
}
"""Of data sets that fall into groups, class names and the order in which groups stand together: first vehicles."""


class Seen(NamedTuple):
    """What one method's models held at the end."""

    method: str
    data: str
    """Name of the data set."""
    insight: Insight


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


def draw_insights(seen: Sequence[Seen], what: str, folder: Path) -> list[Path]:
    """Those pictures that there is something for; the PNG files.  Raises MissingExtra without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings: tuple[tuple[Callable[[Sequence[Seen], str, Path], None], str], ...] = (
        (public_predictions, "predictions"),
        (prototype_cosines, "prototypes"),
        (features, "points"),
    )
    paths = []
    for draw, part in drawings:
        having = [each for each in seen if getattr(each.insight, part) is not None]
        if having:
            paths.append(folder / f"{draw.__name__}.png")
            draw(having, what, paths[-1])
    return paths


def public_predictions(seen: Sequence[Seen], what: str, path: Path) -> None:
    """The mean prediction of all devices on the public samples of each true class, as in FedAL's figure 2."""
    write_points(path, PredictionPoint._fields, (p._asdict() for each in seen for p in prediction_points(each)))
    with _panels(path, len(seen), "What devices predict for public samples", f"{what}{DOT}mean over devices") as made:
        for axes, each in zip(made, seen, strict=True):
            matrix = each.insight.part("predictions")  # (k, k)
            right = float(np.diag(matrix).sum() / max(1, int((matrix.sum(axis=1) > 0).sum())))
            image = _heat(axes, matrix, [str(label) for label in range(len(matrix))], low=0.0, colours="Blues")
            _heading(axes, each.method, f"true class {percent(right)}")
            axes.set_xlabel("predicted class")
            axes.set_ylabel("true class")
        _scale(image, 0.0)


def prototype_cosines(seen: Sequence[Seen], what: str, path: Path) -> None:
    """The cosine of each pair of the prototypes that a run ended with; classes of one kind stand together."""
    write_points(path, CosinePoint._fields, (p._asdict() for each in seen for p in cosine_points(each)))
    with _panels(path, len(seen), "Cosines of prototypes", f"{what}{DOT}blue: alike, red: opposite") as made:
        for axes, each in zip(made, seen, strict=True):
            classes, rows = each.insight.part("prototype_classes"), each.insight.part("prototypes")
            order, names = in_groups(each.data, classes)
            image = _heat(axes, cosines(rows[order]), names, low=-1.0, colours="RdBu")
            _heading(axes, each.method, f"{len(classes)} classes")
        _scale(image, -1.0)


def features(seen: Sequence[Seen], what: str, path: Path) -> None:
    """Features of the same test samples on several devices, on two components: by class, and by device."""
    write_points(path, FeaturePoint._fields, (p._asdict() for each in seen for p in feature_points(each)))
    subtitle = f"{what}{DOT}two principal components; left by class, right by device"
    with _panels(
        path, 2 * len(seen), "Features of test samples", subtitle, columns=2 if len(seen) <= MOST_PAIRS else 4
    ) as made:
        for left, right, each in zip(made[::2], made[1::2], seen, strict=True):
            points, of = each.insight.part("points"), each.insight
            shares = " + ".join(percent(float(share)) for share in of.part("explained"))
            _heading(left, each.method, f"{shares} of the variance")
            _scatter(left, points, of.part("point_classes"), "class")
            _scatter(right, points, of.part("point_devices"), "device")
            if _all_alike(of):
                _heading(right, each.method, "one model, the same on all devices")


def prediction_points(seen: Seen) -> Iterator[PredictionPoint]:
    """Cell by cell."""
    matrix = seen.insight.part("predictions")
    for true, predicted in np.ndindex(*matrix.shape):
        yield PredictionPoint(seen.method, true, predicted, float(matrix[true, predicted]))


def cosine_points(seen: Seen) -> Iterator[CosinePoint]:
    """Pair by pair, in the order of class ids."""
    classes, matrix = seen.insight.part("prototype_classes"), cosines(seen.insight.part("prototypes"))
    for a, b in np.ndindex(*matrix.shape):
        yield CosinePoint(seen.method, int(classes[a]), int(classes[b]), float(matrix[a, b]))


def feature_points(seen: Seen) -> Iterator[FeaturePoint]:
    """Device by device."""
    of = seen.insight
    rows = zip(of.part("point_devices"), of.part("point_classes"), of.part("points"), strict=True)
    for device, label, (x, y) in rows:
        yield FeaturePoint(seen.method, int(device), int(label), float(x), float(y))


def in_groups(data: str, classes: Ints) -> tuple[list[int], list[str]]:
    """In which order rows of these classes (m,) are drawn, as places, and what they are called."""
    names, order = CLASS_GROUPS.get(data, ((), ()))
    if not names:
        return list(range(len(classes))), [str(label) for label in classes]
    places = sorted(range(len(classes)), key=lambda place: order.index(int(classes[place])))
    return places, [names[int(classes[place])] for place in places]


@contextmanager
def _panels(path: Path, count: int, title: str, subtitle: str, columns: int = COLUMNS) -> Iterator[list[Axes]]:
    """A grid of so many equal panels below a heading."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    side_in = min(PANEL_IN, (MOST_IN - HEADER_IN) / rows)
    width_in = max(NARROWEST_IN, (side_in + BESIDE_IN) * columns)
    with picture(path, width_in, HEADER_IN + side_in * rows, title, subtitle) as figure:
        made = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for unused in made[count:]:
            unused.set_axis_off()
        yield made[:count]


def _all_alike(of: Insight) -> bool:
    """Whether every device sees the test samples alike, and so covers all others in the picture."""
    devices, points = of.part("point_devices"), of.part("points")
    first, *others = (points[devices == number] for number in np.unique(devices))
    return bool(others) and all(np.allclose(first, other, atol=1e-4) for other in others)


def _heading(axes: Axes, method: str, words: str) -> None:
    axes.set_title(f"{short(method)}{DOT}{words}", loc="left", fontsize=8.5, color=INK)


def _heat(axes: Axes, matrix: Floats, names: Sequence[str], *, low: float, colours: str) -> AxesImage:
    """A square of cells between `low` and 1, to which `_scale` is the key."""
    image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=1.0, interpolation="nearest")
    axes.set_anchor("W")
    step = math.ceil(len(names) / MOST_TICKS)
    turned = max(map(len, names), default=0) > 3
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=90 if turned else 0, fontsize=7.5)
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=7.5)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    luminance = image.to_rgba(matrix)[:, :, :3] @ np.array(LUMINANCE)  # (m, m)
    for row, column in np.ndindex(*matrix.shape) if len(names) <= MOST_WRITTEN else ():
        value = float(matrix[row, column])
        dark = float(luminance[row, column]) < 0.6
        words = f"{value:.2f}".replace("0.", ".", 1)
        colour = "white" if dark else SOFT
        cell = axes.text(column, row, words, ha="center", va="center", fontsize=5.5, color=colour)
        cell.set_in_layout(False)  # it lies inside: measuring each would take most of the time
    return image


def _scale(image: AxesImage, low: float) -> None:
    """What the colours of all panels mean, beside the last one."""
    bar = image.axes.inset_axes((1.03, 0.0, 0.035, 1.0))
    bar.figure.colorbar(image, cax=bar, ticks=[low, (low + 1) / 2, 1.0])
    bar.tick_params(labelsize=7)
    bar.grid(visible=False)


def _scatter(axes: Axes, points: Floats, groups: Ints, what: str) -> None:
    """Points (n, 2) in one colour for each group."""
    found = np.unique(groups)
    for place, group in enumerate(found):
        mine = points[groups == group]  # (m, 2)
        colour = _colour(place, len(found))
        axes.scatter(mine[:, 0], mine[:, 1], s=7, color=colour, alpha=0.65, linewidth=0, label=str(group))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
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
    """From the palette while it lasts, else from an even walk through one of matplotlib's."""
    if count <= len(COLOURS):
        return COLOURS[place]
    from matplotlib import colormaps  # noqa: PLC0415  # an optional package: only where a picture is drawn

    return colormaps["tab10"](place) if count <= 10 else colormaps["turbo"](place / (count - 1))
