"""Lookup of a term's class knowledge by label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.objectives.base import LABELS, needed


def rows_of(classes: Ints, labels: Ints | None) -> tuple[Ints, NDArray[np.bool_]]:
    """Return each sample's row, and whether it exists: classes (m,) ascending, labels (b,) -> (b,), (b,)."""
    wanted = needed(labels, LABELS)
    at = np.searchsorted(classes, wanted).clip(max=len(classes) - 1)
    return at, classes[at] == wanted


def misfit(what: str, has: str, classes: Ints, rows: Floats, width: int) -> str:
    """Return the fault of rows (m, width) of classes (m,) in words, or empty if they fit."""
    if rows.shape == (len(classes), width) and len(classes):
        return ""
    return f"carries {what} of shape {rows.shape} for {len(classes)} classes, the model has {has} of width {width}"
