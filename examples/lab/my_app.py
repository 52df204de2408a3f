"""What a board of the lab trains: softmax regression on the digits that the environment variable DIGITS names."""

import os

import numpy as np
from sklearn.datasets import load_digits

import edge_sdk


def make() -> edge_sdk.App:
    """One board's part."""
    held = [int(k) for k in os.environ.get("DIGITS", "0,1,2,3,4").split(",")]
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target  # (1797, 8, 8), (1797,)
    mine = np.flatnonzero(np.isin(y[:1000], held))
    preprocess = edge_sdk.Preprocess(scale=1 / 16)
    return edge_sdk.App(
        model=edge_sdk.NumpyModel(10, (1, 8, 8), seed=0, preprocess=preprocess),
        data=edge_sdk.LocalData(train=edge_sdk.Samples(x[mine], y[mine]), test=edge_sdk.Samples(x[1300:], y[1300:])),
    )
