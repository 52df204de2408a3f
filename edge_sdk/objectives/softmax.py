"""Softmax and norms as all runtimes compute them."""

from __future__ import annotations

import numpy as np

from edge_sdk.arrays import Floats

NORM_FLOOR = 1e-12
"""Added under the root of a norm that is differentiated, so that its gradient at 0 is 0 and not NaN."""


def log_softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Log softmax(logits / temperature) over the last axis, shifted so that it cannot overflow."""
    scaled = logits / np.float32(temperature)
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    out: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """softmax(logits / temperature) over the last axis."""
    out: Floats = np.exp(log_softmax(logits, temperature))
    return out


def norms(rows: Floats) -> Floats:
    """The L2 norm of each row: (n, d) -> (n,), never quite 0."""
    out: Floats = np.sqrt((rows**2).sum(axis=-1) + np.float32(NORM_FLOOR))
    return out
