"""The other device: a linear model in numpy, which holds the digits from 0 to 4."""

import numpy as np
from sklearn.datasets import load_digits

import edge_sdk


def make() -> edge_sdk.App:
    """Its part."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target  # (1797, 8, 8), (1797,)
    mine = np.flatnonzero(y[:1000] < 5)
    preprocess = edge_sdk.Preprocess(scale=1 / 16)
    return edge_sdk.App(
        model=edge_sdk.NumpyModel(10, (1, 8, 8), seed=0, preprocess=preprocess),
        data=edge_sdk.LocalData(train=edge_sdk.Samples(x[mine], y[mine]), test=edge_sdk.Samples(x[1300:], y[1300:])),
        max_drop=None,  # a page that is loaded again resets the shared layer for a round: do not pause then
    )
