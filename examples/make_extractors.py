"""Write two frozen feature extractors as .onnx files, fitted without labels on the public part of the digits.

    python examples/make_extractors.py [FOLDER]

A device loads one with `OnnxModel("kmeans.onnx", classes=10, seed=0, preprocess=Preprocess(scale=1 / 16))`, and trains
only a linear layer on top, in numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from edge_sdk.data import Preprocess
from edge_sim.models.onnx_extractors import kmeans_extractor, random_extractor

PUBLIC = 400
SEED = 0


def public_images() -> np.ndarray:
    """Some of scikit-learn's digits, without their labels, as a model sees them: f4 (n, 1, 8, 8) in 0..1."""
    raw = load_digits().images  # (1797, 8, 8), 0..16
    chosen = np.random.default_rng(SEED).permutation(len(raw))[:PUBLIC]
    return Preprocess(scale=1 / 16)(raw[chosen])


def main(folder: Path) -> None:
    """Write random.onnx and kmeans.onnx into a folder."""
    images = public_images()
    files = {
        "random.onnx": random_extractor(images.shape[1:], SEED),
        "kmeans.onnx": kmeans_extractor(images, SEED),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        print(f"{folder / name}: {len(content)} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("extractors"))
