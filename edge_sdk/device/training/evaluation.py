"""The measures of an evaluation: the nearest prototype, and accuracies that weigh the classes differently."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.protocol.knowledge import ClassRows


class NearestPrototype:
    """Classifies features by the nearest prototype among the classes that a device holds (FedProto, equation 4).

    Distances are f8.  They take a thirtieth of an evaluation, and f4 would need an equally slow second pass for near
    ties.
    """

    def __init__(self, prototypes: ClassRows, counts: Ints) -> None:
        """counts: the device's training samples of each class (k,)."""
        own = counts[prototypes.classes] > 0  # (m,)
        rows = prototypes.rows[own].astype(np.float64)  # (m, d)
        self._classes = prototypes.classes[own].astype(np.int64)
        self._squares, self._twice = (rows**2).sum(axis=1), np.ascontiguousarray(2 * rows.T)  # (m,), (d, m)

    def __call__(self, features: Floats) -> Ints:
        """Return the class of each sample, -1 without a prototype of the device's classes: (n, d) -> (n,)."""
        if not len(self._classes):
            return np.full(len(features), -1)
        gaps = self._squares - features @ self._twice  # |f - c|^2 minus |f|^2, which is the same for all c: (n, m)
        found: Ints = self._classes[gaps.argmin(axis=1)]
        return found


def share(right: NDArray[np.bool_]) -> float:
    """Return the accuracy of samples of equal weight; right: whether each was classified correctly (t,), t > 0."""
    return int(np.count_nonzero(right)) / len(right)


def weighted_accuracy(right: NDArray[np.bool_], truth: Ints, weights: Floats) -> float | None:
    """Return sum_j a(y_j) 1[right_j] / sum_j a(y_j) over the test samples j (FedNH, section on evaluation metrics).

    right: (t,) bool, whether each sample was classified correctly; truth: (t,) i8 labels; weights: the a of each
    class, (k,), not negative.  Returns None if the weights of all test samples are 0.
    """
    each = weights[truth].astype(np.float64)  # (t,)
    total = float(each.sum())
    return float(each[right].sum()) / total if total > 0 else None


def personalised_accuracies(right: NDArray[np.bool_], truth: Ints, counts: Ints) -> Mapping[str, float]:
    """Return FedNH's PM(V) and PM(L) of one device, as `pm_v` and `pm_l`.

    PM(V) gives all classes that the device holds the same weight.  PM(L) weighs each class by its share of the
    device's samples, as if the test were distributed like them.  FedNH defines both on a balanced test set.  Their
    exact values reveal something about the shares, so a device reports them only if its owner discloses the shares.

    right: (t,) bool; truth: (t,) i8; counts: (k,) the device's training samples of each class.
    """
    found = {
        "pm_v": weighted_accuracy(right, truth, (counts > 0).astype(np.float32)),
        "pm_l": weighted_accuracy(right, truth, (counts / max(1, counts.sum())).astype(np.float32)),
    }
    return {name: value for name, value in found.items() if value is not None}
