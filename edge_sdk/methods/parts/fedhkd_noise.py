"""FedHKD's noise, determined by the device's secret and the values.

It cannot be predicted without the secret.  A round that is recomputed after a crash uploads the same bits, so that
repetition cannot average the noise away.  Different values get different noise in every round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.methods.contract.job import SECRET_BYTES
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
