"""Label shift and feature shift between two sets of samples, from bounded sketches of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_sdk.arrays import Floats

CHUNKS = 64
"""The number of parts of about equal length that an input is cut into; each counts with its mean."""
MOST_READ = 500
"""The most samples whose inputs are read, evenly spaced."""
LEAST = 20
"""With fewer samples on either side, nothing is said."""
LABELS, FEATURES = 0.25, 0.5
"""The smallest reported shifts: the population stability index, and a difference of means in standard deviations."""
DEVIATIONS = 4.5
"""Standard errors beyond which a difference of means counts; by chance the largest of CHUNKS does in 1 of 2,000."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A summary of a device's samples."""

    counts: tuple[int, ...]
    """Samples of each class: (k,)."""
    read: int
    """The samples whose inputs were read."""
    means: tuple[float, ...]
    """The mean of each part of the inputs: (CHUNKS,) or fewer."""
    variances: tuple[float, ...]


def sketch_of(inputs: Floats, counts: tuple[int, ...]) -> Sketch:
    """Return the sketch of samples; inputs: (n, c, h, w), counts: samples of each class (k,)."""
    some = inputs[:: max(1, math.ceil(len(inputs) / MOST_READ))].reshape(-1, int(np.prod(inputs.shape[1:])))  # (m, d)
    starts = np.unique(np.linspace(0, some.shape[1], CHUNKS, endpoint=False).astype(int))  # (p,)
    lengths = np.diff([*starts, some.shape[1]])  # (p,)
    parts = np.add.reduceat(some.astype(np.float64), starts, axis=1) / lengths  # (m, p)
    return Sketch(counts, len(some), tuple(map(float, parts.mean(axis=0))), tuple(map(float, parts.var(axis=0))))


def label_shift(first: Sketch, now: Sketch) -> float:
    """Return the population stability index of the shares of the classes, or 0 if chance explains it.

    sum (q - p) ln(q / p) over the classes that either side has, each with half a sample more.  Times n m / (n + m) it
    is about chi-square: it counts beyond four deviations above its mean.
    """
    pairs = np.array([each for each in zip(first.counts, now.counts, strict=True) if any(each)], np.float64)  # (c, 2)
    n, m, freedom = sum(first.counts), sum(now.counts), len(pairs) - 1
    if min(n, m) < LEAST or freedom < 1:
        return 0.0
    p, q = ((pairs + 0.5) / (pairs + 0.5).sum(axis=0)).T  # (c,) each
    index = float(((q - p) * np.log(q / p)).sum())
    return index if index * n * m / (n + m) > freedom + 4 * math.sqrt(2 * freedom) else 0.0


def feature_shift(first: Sketch, now: Sketch) -> float:
    """Return the largest difference of a mean in standard deviations of the first samples.

    0 if chance explains it.
    """
    if min(first.read, now.read) < LEAST or len(first.means) != len(now.means):
        return 0.0
    gaps = np.abs(np.subtract(now.means, first.means))  # (p,)
    errors = np.sqrt(np.divide(first.variances, first.read) + np.divide(now.variances, now.read)) + 1e-12
    sizes = gaps / np.sqrt(np.array(first.variances) + 1e-12)
    return float(np.where(gaps > DEVIATIONS * errors, sizes, 0.0).max(initial=0.0))
