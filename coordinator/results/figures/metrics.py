"""Measures of a federation from papers, each a pure function of plain values.

Accuracies are fractions in [0, 1] by device id.  The caller chooses which accuracy goes in: the summary computes AMP,
FM and WLP from that on each device's own task (`local_accuracy`), as their paper does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""The quantiles over devices that a summary contains."""
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Mean accuracies for which a summary gives the rounds, bytes and time to reach them."""


class Point(NamedTuple):
    """A run up to the end of a round: its accuracy, and what was spent since it began.

    bytes_per_device counts bytes sent and received; device_flops, device_s and device_j are totals over all devices, 0
    if they are not metered.
    """

    round: int
    accuracy: float
    bytes_per_device: float
    time_s: float
    device_flops: int = 0
    device_s: float = 0.0
    device_j: float = 0.0


class Quantiles(NamedTuple):
    """How the values of many devices lie."""

    least: float
    low: float
    """A tenth of them are below."""
    middle: float
    high: float
    """A tenth of them are above."""
    greatest: float


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return how at least one value lies."""
    return Quantiles(*np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist())


def deviation(values: Sequence[float], *, of_sample: bool = False) -> float:
    """Return the standard deviation of the population, or of a sample; NaN where a value is not finite.

    The module statistics raises AttributeError there.
    """
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if of_sample else statistics.pstdev(values)


def averaged_performance(accuracy: Mapping[str, float], samples: Mapping[str, int]) -> float:
    """AMP, FedKF Definition 1: sum_k p_k a_k with p_k = |D'_k| / sum_j |D'_j|.

    D'_k is the test part of device k.  samples: its size; the training samples of a device without such a part.  If no
    device tells either, all have the same weight.
    """
    weights = {device: samples.get(device, 0) for device in accuracy}
    total = sum(weights.values())
    if not total:
        return statistics.fmean(accuracy.values())
    return sum(weights[device] * value for device, value in accuracy.items()) / total


def fairness(accuracy: Mapping[str, float]) -> float:
    """FM, FedKF Definition 2: the population variance of a_k over the devices, unweighted; 0 is perfectly fair."""
    return statistics.pvariance(accuracy.values())


def worst_performance(accuracy: Mapping[str, float]) -> float:
    """WLP, FedKF Definition 3: min_k a_k.

    By its Theorem 5.1 no mixture of the devices' data has a lower accuracy.
    """
    return min(accuracy.values())


def global_model(accuracy: Mapping[str, float]) -> float | None:
    """GM, FedNH's section on evaluation metrics: the accuracy of the global model on the balanced test.

    accuracy: that of the global model on the shared test (`data.balance_test` makes it balanced), by device.  All
    devices measure the same model, and GM is their common value.  It is None if their values differ (own tests, or
    running statistics that stay on each device).
    """
    found = set(accuracy.values())
    return found.pop() if len(found) == 1 else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, linear between neighbours (type 7 of Hyndman and Fan)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def over_devices(accuracy: Mapping[str, float], samples: Mapping[str, int], *, every: bool = True) -> dict[str, float]:
    """AMP, FM, WLP, the standard deviation (population) and the quantiles over devices; empty without devices.

    every: whether all devices are there; FM and WLP, which are about all of them, are left out otherwise.
    """
    if not accuracy:
        return {}
    values = list(accuracy.values())
    whole = {"fm": fairness(accuracy), "wlp": worst_performance(accuracy)} if every else {}
    return {
        "amp": averaged_performance(accuracy, samples),
        **whole,
        "sd": deviation(values),
        **{f"q{round(100 * share)}": quantile(values, share) for share in SHARES},
    }


def to_target(points: Sequence[Point], target: float) -> Point | None:
    """The first point whose accuracy is at least the target, or None if it was never reached."""
    return next((point for point in points if point.accuracy >= target), None)
