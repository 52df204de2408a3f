"""Writes model.onnx, the app's existing classifier, and public.npz, the public samples.

Somebody trained the classifier years ago, only on the digits 0 to 4.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import edge_sdk
from edge_sdk.models import export

KNOWN = 5


def main(folder: Path) -> None:
    """Write both files."""
    digits = load_digits()
    x, y = digits.images.reshape(-1, 64).astype(np.float32) / 16, digits.target  # (1797, 64), (1797,)
    known = y[:800] < KNOWN
    fitted = LogisticRegression(max_iter=500).fit(x[:800][known], y[:800][known])
    model = edge_sdk.SklearnModel(fitted, classes=10)
    export(model, folder / "model.onnx", x[:1])
    np.savez(folder / "public.npz", public=digits.images[1000:1300].astype(np.uint8).reshape(-1, 64))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
