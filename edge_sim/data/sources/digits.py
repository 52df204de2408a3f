"""The handwritten digits of scikit-learn: a small data set that comes with the package."""

from __future__ import annotations

import numpy as np

from edge_sdk.data import Samples
from edge_sdk.errors import MissingExtra
from edge_sim.data.draw import hold_out
from edge_sim.data.sources.base import SourceData

SCALE = 1 / 16
"""Factor that brings their 17 grey levels, 0..16, to [0, 1]."""


def read_digits(test_fraction: float, seed: int) -> SourceData:
    """Read 1,797 digits of 8 x 8 pixels, u1 (n, 8, 8), with a test of all ten classes.  Raises MissingExtra."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "sim", "the digits data set") from None
    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8), bunch.target.astype(np.int64)
    train, test = hold_out(y, test_fraction, np.random.default_rng([seed, 1]))
    return SourceData(name="digits", train=Samples(x[train], y[train]), test=Samples(x[test], y[test]), scale=SCALE)
