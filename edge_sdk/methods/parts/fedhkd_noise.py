"""FedHKD's noise, determined by the device's secret and the values.

It cannot be predicted without the secret.  A round that is recomputed after a crash uploads the same bits, so that
repetition cannot average the noise away.  Different values get different noise in every round.  The guarantee is the
exact (epsilon, delta)-differential privacy of a Gaussian mechanism, by edge_sdk.privacy.noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.methods.contract.job import SECRET_BYTES
from edge_sdk.privacy.noise import epsilon
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MOST, Contribution

_DOMAIN = b"edge-sdk noise 1"
_DEVIATIONS = 6.0
"""The allowed deviations of the noise on a count.  Above it, less than one honest count in 10^9 is cut."""


def gaussian(secret: bytes, values: Doubles) -> Doubles:
    """Return standard normal numbers in the shape of `values`, from a SHAKE-256 stream by Box and Muller's transform.

    Raises ValueError for a secret of less than 32 bytes.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"noise needs a secret of {SECRET_BYTES} bytes, found {len(secret)}")
    shape = repr(values.shape).encode()
    key = hashlib.sha256(_DOMAIN + secret).digest()
    stream = hashlib.shake_256(key + shape + values.astype("<f8").tobytes())
    words = np.frombuffer(stream.digest(16 * values.size), "<u8").reshape(2, -1)  # (2, n)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), never 0
    normal: Doubles = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])
    return normal.reshape(values.shape)


def with_published_noise(means: HyperKnowledge, scale: float, secret: bytes) -> HyperKnowledge:
    """Return hyper-knowledge with the paper's noise: N(0, (scale / n)^2) on each number of a mean feature.

    scale: 2 zeta sigma; n: the samples of the class.
    """
    features = means.features.astype(np.float64)
    deviations = scale / means.counts[:, None]  # (m, 1)
    return replace(means, features=(features + deviations * gaussian(secret, features)).astype(np.float32))


def mean_of_sums(
    ups: Iterable[Contribution], spec: FederationSpec, noise_counts: float, min_count: int
) -> HyperKnowledge | None:
    """Divide noised sums by their noised counts; a class with fewer than `min_count` samples is left out.

    Predictions are projected back to the simplex.  A count is limited to what its sender declared plus six deviations
    of the noise, because counts are unverified claims.
    """
    k, slack = spec.classes, _DEVIATIONS * noise_counts
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


def promise(mu: float, most: float, rounds: int, *, shares_weights: bool) -> str:
    """Describe the guarantee of noise of mu in each round at a delta of `most`, and its limits (W2)."""
    one, every = ((each, epsilon(most, each)) for each in (mu, mu * math.sqrt(rounds)))
    weights = "the weights leave without noise" if shares_weights else "so do figures that the device measures"
    return (
        "W2: the noise protects the hyper-knowledge tensor only, given the models that made it: "
        f"mu = {one[0]:.3g}, epsilon = {one[1]:.3g} at delta = {most:g} for one round, "
        f"mu = {every[0]:.3g}, epsilon = {every[1]:.3g} for all {rounds}; a round as a whole has no epsilon, for "
        f"models are trained on the same data without noise, and {weights}"
    )


def published_promise(sigma: float, width: int, most: float, rounds: int) -> str:
    """Describe the guarantee of the paper's noise on mean features of this width, and its limits (W2).

    A record moves a mean of n features by at most 2 zeta sqrt(d) / n; the noise has the deviation 2 zeta sigma / n.
    The paper leaves sqrt(d) out.
    """
    told = "mean predictions, counts and which classes pass leave without noise, so a round has no epsilon"
    if not width:
        return f"W2: published noise: {told}; set federation.feature_dim to see that of the mean features"
    mu = math.sqrt(width) / sigma
    one, every = epsilon(most, mu), epsilon(most, mu * math.sqrt(rounds))
    claimed = math.sqrt(2 * math.log(1.25 / most)) / sigma
    return (
        f"W2: published noise: the mean features of {width} numbers alone, given the models that made them, have "
        f"epsilon = {one:.3g} at delta = {most:g} for one round, {every:.3g} for all {rounds} (the paper's formula "
        f"says {claimed:.3g}); {told}"
    )
