"""FedHKD: means of hyper-knowledge on the coordinator, those of noised sums, and the paper's own noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.methods.noise import gaussian
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MOST, Contribution, mean_over_holders

_DEVIATIONS = 6.0
"""The allowed deviations of the noise on a count.  Above it, less than one honest count in 10^9 is cut."""


def mean_hyper(ups: Sequence[HyperKnowledge]) -> HyperKnowledge | None:
    """Equation 9: per class the mean over its holders, by their samples of it; features and predictions alike."""
    if not ups:
        return None
    features, soft = (
        mean_over_holders([ClassRows(classes=up.classes, rows=getattr(up, part), counts=up.counts) for up in ups])
        for part in ("features", "soft")
    )
    return HyperKnowledge(classes=features.classes, features=features.rows, soft=soft.rows, counts=features.counts)


def mean_of_sums(
    ups: Iterable[Contribution], spec: FederationSpec, *, min_count: int, noise: float
) -> HyperKnowledge | None:
    """Divide noised sums by their noised counts; a class with fewer than `min_count` samples is left out.

    Predictions are projected back to the simplex.  A count is limited to what its sender declared plus six deviations
    of the noise, because counts are unverified claims.  noise: the deviation of that on counts.
    """
    k, slack = spec.classes, _DEVIATIONS * noise
    total = np.zeros((k, spec.feature_dim + k + 1))
    for up in ups:  # in the order of device numbers
        sums = cast("ClassRows", up.knowledge["sums"])
        rows = sums.rows.astype(np.float64)
        rows[:, -1] = rows[:, -1].clip(-slack, up.samples + slack)
        total[sums.classes] += rows
    counts = total[:, -1]  # (k,)
    kept = np.flatnonzero(counts >= min_count)
    if not len(kept):
        return None
    means = total[kept, :-1] / counts[kept, None]  # (m, d + k)
    return HyperKnowledge(
        classes=kept.astype(np.int32),
        features=means[:, :-k].astype(np.float32),
        soft=on_simplex(means[:, -k:]).astype(np.float32),
        counts=np.clip(np.rint(counts[kept]), 1, MOST).astype(np.int32),
    )


def on_simplex(rows: Doubles) -> Doubles:
    """The nearest points of the probability simplex to rows (m, k): Duchi et al. 2008, ICML, figure 1."""
    falling = -np.sort(-rows, axis=1)  # (m, k)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)  # (m, k)
    last = (falling > excess).sum(axis=1, keepdims=True) - 1  # (m, 1): entries that stay above 0, less 1
    nearest: Doubles = np.maximum(rows - np.take_along_axis(excess, last, axis=1), 0)
    return nearest


def published(means: HyperKnowledge, sigma: float, zeta: float, secret: bytes) -> HyperKnowledge:
    """Return hyper-knowledge with the paper's noise: N(0, (2 zeta sigma / n)^2) on each number of a mean feature."""
    features = means.features.astype(np.float64)
    deviations = 2 * zeta * sigma / means.counts[:, None]  # (m, 1)
    return replace(means, features=(features + deviations * gaussian(secret, features)).astype(np.float32))
