"""What models hold at the end of a run, as arrays for pictures: predictions, prototypes, features.

Predictions and features need the models and the labels of the public set, which only a simulation in memory has.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import UsageError

NAME = "insight.npz"

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Insight:
    """Each part is there or None; k: classes, m: classes with a prototype, n: test samples over all devices drawn."""

    predictions: Floats | None = None  # (k, k)
    """Row c: what the learning devices predict on average for public samples of class c; zeros where there is none."""
    prototype_classes: Ints | None = None  # (m,)
    prototypes: Floats | None = None  # (m, d)
    points: Floats | None = None  # (n, 2)
    """Features of test samples on their first two principal components, of all devices together."""
    point_classes: Ints | None = None  # (n,)
    point_devices: Ints | None = None  # (n,)
    """Device numbers."""
    explained: Floats | None = None  # (2,)
    """The share of the variance that each component has."""

    def part(self, name: str) -> NDArray[Any]:
        """One of the arrays, by name.  Raises ValueError where it is not there."""
        found: NDArray[Any] | None = getattr(self, name)
        if found is None:
            raise ValueError(f"no {name}")
        return found


def to_bytes(insight: Insight) -> bytes:
    """As an npz file; the same arrays give the same bytes."""
    arrays = {each.name: getattr(insight, each.name) for each in fields(insight)}
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


def read(folder: Path) -> Insight | None:
    """What a run directory holds; None where it has none.  Raises UsageError where it does not read."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            known = {each.name for each in fields(Insight)}
            return Insight(**{name: arrays[name] for name in arrays.files if name in known})
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path}: does not read ({type(error).__name__}); remove it, or run it again") from None


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


def cosines(prototypes: Floats) -> Floats:
    """The cosine of each pair of rows, (m, d) -> (m, m); 0 for a row of zeros."""
    rows = prototypes.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # (m, 1)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    found: Floats = (units @ units.T).astype(np.float32)
    return found
