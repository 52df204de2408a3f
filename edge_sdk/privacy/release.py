"""Mode A: sums by class over the features of a frozen, public extractor, released jointly with noise.

Each class has a row (a sum clip(h) / C, c samples) with a^2 + c^2 = 1, so one record changes one row by an L2 norm of
at most 1.  Predictions are not released, because the head that makes them was trained on the same records.  Each record
is put on a grid by rounding towards zero, which makes no norm larger.  Sums are whole numbers, and so is the noise.
All classes are always released, whether the device holds them or not.  Neighbours differ by the presence of one record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.errors import UsageError
from edge_sdk.privacy.noise import discrete_gaussian, epsilon, largest_mu

SHARES = (math.sqrt(0.9), math.sqrt(0.1))
"""a, c: the L2 norms that a record adds at most with its feature and its one sample."""
FROZEN = "prototype-pull"
"""The loss term that would train an extractor.  A model in which it has no effect has a frozen extractor."""
GRID = 2**20
"""Steps of the grid in 1: rounding loses less than a millionth of a record's share."""
Draw: TypeAlias = Callable[[int], int]
"""Draws one number of noise with this variance, in squared steps of the grid."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise of a release about one record of the device's training data.

    epsilon: a finite number above 0.
    delta: a number between 0 and 1.

    Raises UsageError for other numbers, because they promise nothing.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, value, most in (("epsilon", self.epsilon, math.inf), ("delta", self.delta, 1.0)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < most:
                wanted = "a finite number above 0" if most == math.inf else "a number above 0 and below 1"
                raise UsageError(f"privacy: {name} {value!r}: expected {wanted}, as in Guarantee(8.0, 1e-5)")

    @property
    def mu(self) -> float:
        """The mu of one release that uses all of it."""
        return largest_mu(self.epsilon, self.delta)


def contributions(features: Floats, clip: float) -> NDArray[np.int64]:
    """Return what each record adds to the row of its class, in steps of the grid: (n, d + 1).

    features: (n, d), shortened to the L2 norm `clip`.
    """
    h = _shortened(features.astype(np.float64), clip) / clip
    rows = np.hstack([SHARES[0] * h, np.full((len(h), 1), SHARES[1])])
    steps: NDArray[np.int64] = np.trunc(rows * GRID).astype(np.int64)
    return steps


def sums_by_class(added: NDArray[np.int64], labels: Ints, classes: int) -> NDArray[np.int64]:
    """Return the sums of all classes, zero for those without a record: (k, d + 1).

    added: (n, d + 1), what `contributions` returned; labels: (n,) of 0 to k - 1.
    """
    sums = np.zeros((classes, added.shape[1]), np.int64)
    np.add.at(sums, labels, added)
    return sums


def noised(sums: NDArray[np.int64], guarantee: Guarantee | None, draw: Draw = discrete_gaussian) -> Doubles:
    """Add noise to sums (k, d + 1) in steps of the grid, unless `guarantee` is None.  Returns units of SHARES."""
    if guarantee is None:
        bare: Doubles = sums / GRID
        return bare
    variance = math.ceil((GRID / guarantee.mu) ** 2)
    noise = np.array([draw(variance) for _ in range(sums.size)], np.int64).reshape(sums.shape)
    found: Doubles = (sums + noise) / GRID
    return found


def merged(parts: Iterable[tuple[Ints, Doubles]], classes: int, most_samples: float) -> Doubles:
    """Return the sum of several devices' sums, in units of SHARES: (k, d + 1).  Any order gives the same bits.

    parts: classes (m,) and sums (m, d + 1), which are rounded to the grid, so that whole numbers are added up.
    most_samples: the maximum number of samples of a class on one device; larger sums are cut to it.
    """
    total: NDArray[np.int64] | None = None
    for ids, sums in parts:
        steps = np.rint(sums.clip(-most_samples, most_samples) * GRID).astype(np.int64)
        if total is None:
            total = np.zeros((classes, sums.shape[1]), np.int64)
        total[ids] += steps
    if total is None:
        raise ValueError("no sums")
    found: Doubles = total / GRID
    return found


def head_of(classes: Ints, means: Doubles, count: int, never: float) -> Doubles:
    """Return the last layer (k, d + 1), bias last, whose largest logit is that of the nearest mean.

    classes, means: (m,) and (m, d).  f m - |m|^2 / 2 is largest where |f - m| is smallest.
    never: the bias of the other classes, so low that none of them is predicted.
    """
    rows = np.zeros((count, means.shape[1] + 1))
    rows[:, -1] = never
    rows[classes] = np.hstack([means, -(means**2).sum(axis=1, keepdims=True) / 2])
    return rows


def means_of(sums: Doubles, clip: float, least: float) -> tuple[Ints, Doubles, Doubles]:
    """Return classes (m,), mean features (m, d) and samples (m,) of noised sums, or of several devices' sums together.

    sums: (k, d + 1), as `release` returns them.
    clip: the L2 norm to which features were shortened.
    least: the minimum number of samples of a class after noise.  Classes with fewer are left out, because the noise
    drowns their mean.
    """
    counts = sums[:, -1] / SHARES[1]  # (k,)
    kept = np.flatnonzero(counts >= least)
    features = sums[kept, :-1] * (clip / SHARES[0]) / counts[kept, None]
    return kept, features, counts[kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The conditions of a guarantee, beside the noise."""

    frozen_extractor: bool
    """Whether the weights in front of the last layer were never trained on this device's data."""
    clipped: bool = True
    """Whether each record's feature is shortened before it is added."""
    noised_counts: bool = True
    """Whether numbers of samples and which classes there are leave only in the noised sums."""
    figures_withheld: bool = True
    """Whether accuracies, losses and instruments measured on private data stay on the device."""
    once_per_data: bool = True
    """Whether the same data is released once, and after that the same bytes."""


NOTHING_PROMISED = "no formal guarantee"


ONE_VERSION = "one version of the data; changed data are released again, and a device's own budget bounds all versions"
ALL_VERSIONS = "all that is released of this data under its ledger"


def promised(assumed: Assumptions, guarantee: Guarantee | None, span: str = ONE_VERSION) -> str:
    """Say in one line what a device's uploads promise; an epsilon only where all that it rests on holds (mode A).

    guarantee: None without noise (mode C).  span: the time or the releases that it covers.
    """
    missing = {
        "there is no noise": guarantee is not None,
        "the extractor is trained on the same data": assumed.frozen_extractor,
        "records are not clipped": assumed.clipped,
        "numbers of samples leave in clear": assumed.noised_counts,
        "figures measured on private data leave in clear": assumed.figures_withheld,
        "the same data is released again": assumed.once_per_data,
    }
    wrong = [why for why, holds in missing.items() if not holds]
    if wrong or guarantee is None:
        return f"{NOTHING_PROMISED}: {'; '.join(wrong)}"
    told = epsilon(guarantee.delta, guarantee.mu)
    numbers = f"epsilon = {told:.3g} at delta = {guarantee.delta:g}"
    return f"each training record: {numbers}, one record there or not, for {span}"


def _shortened(rows: Doubles, most: float) -> Doubles:
    """Return rows whose L2 norm is at most `most`."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    shorter: Doubles = rows * np.minimum(1.0, most / np.maximum(norms, 1e-300))
    return shorter
