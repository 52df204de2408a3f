"""Your own model and data, in twenty lines: `--app my_app:make`."""

import os

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import edge_sdk


def make() -> edge_sdk.App:
    """One device's part: it holds the digits that DIGITS names."""
    held = [int(k) for k in os.environ.get("DIGITS", "0,1,2").split(",")]
    digits = load_digits()
    x, y = digits.images[:1400], digits.target[:1400]
    mine = np.isin(y, held)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return edge_sdk.App(
        model=edge_sdk.TorchModel(net, classes=10, preprocess=edge_sdk.Preprocess(scale=1 / 16)),
        data=edge_sdk.LocalData(
            train=edge_sdk.Samples(x[mine], y[mine]),
            test=edge_sdk.Samples(digits.images[1400:], digits.target[1400:]),
        ),
        public=edge_sdk.PublicSet.load("public.npz"),
    )
