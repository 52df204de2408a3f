"""Accuracy of `edge_sdk.SequenceModel`, the model of boards with numpy alone, trained on all of a data set at once.

    EDGE_DATA=FOLDER python -m benchmarks.on_device.sequence_models

FOLDER holds uci_har.npz and ag_news.npz, as `edge-sdk bench` takes them.  It prints a line for each; the figures stand
in docs/how-to/texts-and-sensors.md.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import edge_sdk
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim

SEEDS = (0, 1, 2)
BATCH = 32
OPTIM = Optim(kind="adam", learning_rate=0.01)


def main() -> int:
    """Train and print; the exit code."""
    folder = Path(os.environ.get("EDGE_DATA", "."))
    for name, epochs in (("uci_har", 20), ("ag_news", 5)):
        path = folder / f"{name}.npz"
        if not path.is_file():
            sys.stderr.write(f"sequence_models: no {path}: EDGE_DATA names its folder\n")
            return 2
        with np.load(path) as arrays:
            parts = [samples(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
        begun = time.process_time()
        found = [accuracy(*parts, seed=seed, epochs=epochs) for seed in SEEDS]
        each = ", ".join(f"{share:.1%}" for share in found)
        used = time.process_time() - begun
        print(f"{name}: {len(parts[0]):,} samples, {epochs} epochs: {each} of {len(parts[1]):,} ({used:.0f} CPU s)")
    return 0


def samples(x: np.ndarray, y: np.ndarray) -> edge_sdk.Samples:
    """Return windows (n, t, d) as series, texts (n,) as the ids of their first 64 words."""
    if x.dtype.kind == "U":
        return edge_sdk.Samples(edge_sdk.hashed_words(x, vocabulary=5000, length=64), y, kind="tokens", vocabulary=5000)
    return edge_sdk.Samples(x, y, kind="series")


def accuracy(train: edge_sdk.Samples, test: edge_sdk.Samples, *, seed: int, epochs: int) -> float:
    """Train one model from this seed, and return its share of right answers on the test."""
    of = edge_sdk.Preprocess(kind=train.kind, vocabulary=train.vocabulary)
    if train.kind == "series":
        mean, std = train.x.mean(axis=(0, 1)), train.x.std(axis=(0, 1))
        of = edge_sdk.Preprocess(kind=train.kind, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    model = edge_sdk.SequenceModel(int(train.y.max()) + 1, train.x.shape[1:], seed=seed, preprocess=of)
    rng, whole = np.random.default_rng(seed), len(train) // BATCH * BATCH
    orders = [rng.permutation(len(train))[:whole].reshape(-1, BATCH) for _ in range(epochs)]
    batches = Batches(inputs=of(train.x), labels=train.y.astype(np.int64), indices=np.concatenate(orders))
    model.fit(batches, (CrossEntropy(),), OPTIM)
    return float((model.logits(of(test.x)).argmax(axis=1) == test.y).mean())


if __name__ == "__main__":
    sys.exit(main())
