"""The learning devices: a linear model in numpy, which holds the digits that DIGITS names."""

import os

import numpy as np
from sklearn.datasets import load_digits

import edge_sdk


def make(held: str = os.environ.get("DIGITS", "0,1,2,3,4")) -> edge_sdk.App:
    """One device's part."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target  # (1797, 8, 8), (1797,)
    mine = np.flatnonzero(np.isin(y[:1000], [int(k) for k in held.split(",")]))
    preprocess = edge_sdk.Preprocess(scale=1 / 16)
    return edge_sdk.App(
        model=edge_sdk.NumpyModel(input_shape=(1, 8, 8), classes=10, seed=0, preprocess=preprocess),
        data=edge_sdk.LocalData(train=edge_sdk.Samples(x[mine], y[mine]), test=edge_sdk.Samples(x[1300:], y[1300:])),
        public=edge_sdk.PublicSet.load("public.npz"),
    )
