"""The devices of benchmarks/arm/run.py: a board without torch, and PCs with torch.

Each returns an App from the files that lie in the working directory: data.npz, public.npz and extractor.onnx.
"""

from __future__ import annotations

import os

import numpy as np

import edge_sdk

CLASSES = 10
SHARES = 3
"""The training samples are dealt out in turn; SHARE says which third this device holds."""
SCALED = edge_sdk.Preprocess(scale=1 / 16)


def softmax() -> edge_sdk.App:
    """Softmax regression on the pixels, trained in numpy: the base install."""
    return _app(edge_sdk.NumpyModel(CLASSES, (1, 8, 8), seed=_share(), preprocess=SCALED))


def extractor() -> edge_sdk.App:
    """A frozen extractor in ONNX Runtime under a head that is trained in numpy."""
    return _app(edge_sdk.OnnxModel("extractor.onnx", CLASSES, seed=_share(), preprocess=SCALED))


def net() -> edge_sdk.App:
    """A net in torch with as many features as the extractor has."""
    import torch

    torch.manual_seed(_share())
    layers = torch.nn
    width = int(os.environ["WIDTH"])
    body = (layers.Flatten(), layers.Linear(64, width), layers.ReLU())
    return _app(
        edge_sdk.TorchModel(layers.Sequential(*body, layers.Linear(width, CLASSES)), CLASSES, preprocess=SCALED)
    )


def _share() -> int:
    return int(os.environ["SHARE"])


def _app(model: edge_sdk.Model) -> edge_sdk.App:
    with np.load("data.npz") as arrays:
        mine = slice(_share(), None, SHARES)
        train = edge_sdk.Samples(arrays["x"][mine], arrays["y"][mine])
        test = edge_sdk.Samples(arrays["x_test"], arrays["y_test"])
    data = edge_sdk.LocalData(train=train, test=test)
    public = edge_sdk.PublicSet.load("public.npz")
    return edge_sdk.App(model=model, data=data, public=public, disclose_classes=True)
