"""Takes training steps on a board, and writes the weights.

python steps.py FOLDER NET RUNTIME OUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import edge_sdk
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim

OPTIM = Optim(kind="sgd", learning_rate=0.01, momentum=0.9)


def main(folder: Path, net: str, runtime: str, out: Path) -> None:
    """Train the net of FOLDER/NET.onnx on the mini-batches of FOLDER/NET.npz."""
    file = folder / f"{net}.onnx"
    with np.load(folder / f"{net}.npz") as arrays:
        work = Batches(inputs=arrays["inputs"], labels=arrays["labels"], indices=arrays["indices"], stochastic=False)
    model = edge_sdk.OnnxModel(file, train="all") if runtime == "onnx" else edge_sdk.NumpyModel.from_onnx(file)
    start = model.weights()
    model.fit(work, (CrossEntropy(),), OPTIM)
    np.savez(out, start=start, weights=model.weights())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
