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
    """Row c: the mean prediction of the learning devices for public samples of class c; zeros if there are none."""
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
