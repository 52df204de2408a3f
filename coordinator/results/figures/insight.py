"""Insight into models at the end of a run, as arrays for pictures: predictions, prototypes, features.

Predictions and features need the models and the labels of the public set, which only a simulation in memory has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Insight:
    """Arrays, each of which may be None.

    k: classes; m: classes with a prototype; d: width of a prototype; n: test samples of all devices.
    """

    predictions: Floats | None = None  # (k, k)
    """Row c: the mean prediction of the learning devices for public samples of class c; zeros without such samples."""
    prototype_classes: Ints | None = None  # (m,)
    prototypes: Floats | None = None  # (m, d)
    points: Floats | None = None  # (n, 2)
    """The features of all devices' test samples on their first two principal components."""
    point_classes: Ints | None = None  # (n,)
    point_devices: Ints | None = None  # (n,)
    """The number of the device that each point is from."""
    explained: Floats | None = None  # (2,)
    """The share of the variance on each component."""

    def part(self, name: str) -> NDArray[Any]:
        """One of the arrays, by name.  Raises ValueError if it is None."""
        found: NDArray[Any] | None = getattr(self, name)
        if found is None:
            raise ValueError(f"no {name}")
        return found

    def check(self) -> None:
        """Raise ValueError unless the arrays have numbers of these shapes, and those that belong together are there."""
        sizes: dict[str, int] = {}
        for name, shape in _SHAPES.items():
            array = getattr(self, name)
            if array is None:
                continue
            kinds = "iu" if name.endswith(("classes", "devices")) else "f"
            fits = array.dtype.kind in kinds and array.ndim == len(shape) and array.size > 0
            fits = fits and bool(np.isfinite(array).all()) and bool((np.abs(array) < _LARGEST).all())
            if not fits or any(sizes.setdefault(of, size) != size for of, size in zip(shape, array.shape, strict=True)):
                raise ValueError(f"{name} does not fit")
        if sizes.get("2", 2) != 2 or any(0 < sum(getattr(self, n) is None for n in each) < len(each) for each in _SETS):
            raise ValueError("a part of the arrays does not fit")


_SHAPES = {
    "predictions": "kk",
    "prototype_classes": "m",
    "prototypes": "md",
    "points": "n2",
    "point_classes": "n",
    "point_devices": "n",
    "explained": "2",
}
_SETS = (("prototype_classes", "prototypes"), ("points", "point_classes", "point_devices", "explained"))
"""Arrays that are drawn together."""
_LARGEST = 1e15


def principal_components(features: Floats) -> tuple[Floats, Floats]:
    """PCA: features (n, d) on their first two components, (n, 2), and the share of the variance of each, (2,).

    Each component points to where its largest loading is positive, so that the picture does not depend on the solver.
    """
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)  # (n, d)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)  # (r,), (r, d)
    axes = axes[:2]
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    points = np.zeros((len(features), 2))
    points[:, : len(axes)] = centred @ axes.T
    shares = np.zeros(2)
    shares[: len(axes)] = sizes[:2] ** 2 / max(float((sizes**2).sum()), np.finfo(np.float64).tiny)
    return points.astype(np.float32), shares.astype(np.float32)
