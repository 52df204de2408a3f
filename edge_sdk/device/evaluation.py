"""Accuracies in which classes weigh differently."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.objectives import Floats, Ints


def weighted_accuracy(right: NDArray[np.bool_], truth: Ints, weights: Floats) -> float | None:
    """Give sum_j a(y_j) 1[right_j] / sum_j a(y_j) over the test (FedNH, its section on evaluation metrics).

    right: (t,) bool; truth: (t,) int; weights: a, (k,), not negative.  None where no test sample has a weight.
    """
    each = weights[truth].astype(np.float64)  # (t,)
    total = float(each.sum())
    return float(each[right].sum()) / total if total > 0 else None


def personalised_accuracies(right: NDArray[np.bool_], truth: Ints, counts: Ints) -> Mapping[str, float]:
    """FedNH's PM(V) and PM(L) of one device, as `pm_v` and `pm_l`; counts: (k,) its training samples by class.

    PM(V) weighs every class that the device holds alike; PM(L) each by its share of the device's samples, as if the
    test were distributed like them.  FedNH means both on a balanced test.  Their exact values tell something of the
    shares, so a device gives them only where its owner discloses those.
    """
    found = {
        "pm_v": weighted_accuracy(right, truth, (counts > 0).astype(np.float32)),
        "pm_l": weighted_accuracy(right, truth, (counts / max(1, counts.sum())).astype(np.float32)),
    }
    return {name: value for name, value in found.items() if value is not None}
