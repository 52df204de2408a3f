"""The picture of the spiral: what each model makes of the plane, and where it puts the arms in feature space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Circle

from coordinator.results.plots.drawing import DOT, INK, SOFT, picture
from edge_sdk import TorchModel

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""The palette of Okabe and Ito, one colour for each arm: colour-blind readers can distinguish them."""
GRID = 300
"""Points on each side of the grid on which the plane is classified."""
NAMES = {"fedavg": "FedAvg", "fednh": "FedNH"}


@dataclass(frozen=True)
class Local:
    """A device after some epochs of its own."""

    name: str
    counts: tuple[int, ...]
    """Samples of each class."""
    model: TorchModel


@dataclass(frozen=True)
class Trained:
    """The result of a method: the model of all, and the models of two devices that continued alone."""

    method: str
    model: TorchModel
    alone: tuple[Local, ...]


def answers(model: TorchModel, x: np.ndarray) -> np.ndarray:
    """The class of each point: x (n, 2) -> (n,)."""
    return model.logits(model.spec.preprocess(x)).argmax(axis=1)


def accuracy(model: TorchModel, x: np.ndarray, y: np.ndarray) -> float:
    """The share of points that are classified correctly."""
    return float((answers(model, x) == y).mean())


def draw(runs: Sequence[Trained], x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """One row for each method: the plane, features of the model of all, and of two devices alone."""
    title = "Six arms, ten devices, two dimensions"
    subtitle = DOT.join(
        (
            "colours: the arms",
            "dots: test points",
            "rays: class prototypes, the rows of the last layer",
            "bars: what a device holds",
        )
    )
    with picture(path, 12.4, 7.2, title, subtitle) as figure:
        figure.get_layout_engine().set(hspace=0.07, wspace=0.03)
        cells = figure.subplots(len(runs), 4, squeeze=False)
        for axes, run in zip(cells, runs, strict=True):
            plane(axes[0], run.model, x, y)
            head(axes[0], NAMES[run.method], f"what it makes of the plane{DOT}{accuracy(run.model, x, y):.0%} right")
            features(axes[1], run.model, x, y)
            head(axes[1], "the model of all", "where it puts each arm, and the prototypes")
            for cell, local in zip(axes[2:], run.alone, strict=True):
                features(cell, local.model, x, y)
                holdings(cell, local.counts)
                head(
                    cell,
                    f"{local.name}, trained on alone",
                    f"{sum(local.counts)} points of its own{DOT}{accuracy(local.model, x, y):.0%} of all right",
                )


def head(axes: Any, title: str, detail: str) -> None:
    """Two lines over a cell."""
    axes.set_title(f"{title}\n", loc="left", fontsize=10, fontweight="bold", color=INK)
    axes.text(0, 1.02, detail, transform=axes.transAxes, fontsize=8, color=SOFT, va="bottom")


def plane(axes: Any, model: TorchModel, x: np.ndarray, y: np.ndarray) -> None:
    """The regions that the model gives to each class, under the test points."""
    side = np.linspace(-1.12, 1.12, GRID, dtype=np.float32)
    points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    regions = answers(model, points).reshape(GRID, GRID)
    axes.imshow(
        regions,
        extent=(side[0], side[-1], side[0], side[-1]),
        origin="lower",
        cmap=ListedColormap(COLOURS),
        vmin=-0.5,
        vmax=len(COLOURS) - 0.5,
        alpha=0.28,
        interpolation="nearest",
    )
    dots(axes, x, y, size=3)
    bare(axes)


def features(axes: Any, model: TorchModel, x: np.ndarray, y: np.ndarray) -> None:
    """Features of the test points and prototypes as rays, the longest of either of length 1.

    Features of equal length lie on a circle; they are scattered outwards to show how many there are.
    """
    f = model.features(model.spec.preprocess(x))  # (n, 2)
    f = f / np.quantile(np.linalg.norm(f, axis=1), 0.99)
    rows = model.head_rows()[:, :-1]
    rows = rows / np.linalg.norm(rows, axis=1).max()
    if "cosine-head" in model.spec.capabilities:
        f = f * (1.03 + 0.1 * np.abs(np.random.default_rng(0).normal(size=(len(f), 1))))
        axes.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor="#BBBBBB", linewidth=0.8, zorder=1))
    dots(axes, f, y, size=4)
    for row, colour in zip(rows, COLOURS, strict=True):
        ray = {"solid_capstyle": "round", "zorder": 3}
        axes.plot([0, row[0]], [0, row[1]], color="white", linewidth=4.5, **ray)
        axes.plot([0, row[0]], [0, row[1]], color=colour, linewidth=2.5, marker="o", markevery=[1], markersize=5, **ray)
    fit(axes, np.vstack([f, rows]))
    bare(axes)


def fit(axes: Any, points: np.ndarray) -> None:
    """A square around all points, with a margin."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.54 * (high - low).max()
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


def dots(axes: Any, at: np.ndarray, y: np.ndarray, size: float) -> None:
    """Points in the colours of their classes, in an order that hides none."""
    order = np.random.default_rng(0).permutation(len(y))
    colours = np.array(COLOURS)[y[order]]
    axes.scatter(*at[order].T, s=size, c=colours, linewidths=0, alpha=0.75, rasterized=True, zorder=2)


def holdings(axes: Any, counts: Sequence[int]) -> None:
    """How many samples of each class a device holds, as small bars in a corner."""
    inset = axes.inset_axes((0.0, 0.0, 0.2, 0.12))
    inset.bar(range(len(counts)), counts, color=COLOURS, width=0.8)
    inset.set_axis_off()


def bare(axes: Any) -> None:
    """No ticks: the axes have no unit."""
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
