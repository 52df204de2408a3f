"""Two devices: `teacher` answers with model.onnx and learns nothing, `learner` trains the file's last layer."""

from __future__ import annotations

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

import edge_sdk

SCALED = edge_sdk.Preprocess(scale=1 / 16)


def teacher() -> edge_sdk.App:
    """Take part with any function that predicts: here a session of ONNX Runtime."""
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def answer(x: np.ndarray) -> np.ndarray:  # (n, 1, 1, 64) -> (n, 10)
        return session.run(None, {name: x.reshape(len(x), 64).astype(np.float32)})[0]

    return edge_sdk.App(
        model=edge_sdk.PredictOnly(answer, classes=10, preprocess=SCALED),
        data=edge_sdk.LocalData(train=held(0, 5)),
        public=edge_sdk.PublicSet.load("public.npz"),
    )


def learner() -> edge_sdk.App:
    """Take part with the file itself: its last layer learns, the layers before it are frozen."""
    digits = load_digits()
    return edge_sdk.App(
        model=edge_sdk.OnnxModel("model.onnx", preprocess=SCALED),
        data=edge_sdk.LocalData(train=held(5, 10), test=edge_sdk.Samples(images(digits)[1300:], digits.target[1300:])),
        public=edge_sdk.PublicSet.load("public.npz"),
    )


def held(first: int, end: int) -> edge_sdk.Samples:
    """The samples of some digits."""
    digits = load_digits()
    mine = np.flatnonzero((digits.target[:1000] >= first) & (digits.target[:1000] < end))
    return edge_sdk.Samples(images(digits)[mine], digits.target[mine])


def images(digits: object) -> np.ndarray:
    """Raw pictures, flat as the file wants them: (1797, 64)."""
    return digits.images.astype(np.uint8).reshape(-1, 64)
