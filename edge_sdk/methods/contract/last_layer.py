"""A last layer on the coordinator: its random start, and its training on class rows, in numpy."""

from __future__ import annotations

import numpy as np

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.objectives import CrossEntropy, Seen
from edge_sdk.protocol.knowledge import ClassRows


def random_rows(classes: int, width: int, rng: np.random.Generator) -> Floats:
    """Draw weights and bias from U(-1/sqrt d, 1/sqrt d), as linear layers of devices begin: (k, d + 1), bias last."""
    bound = width**-0.5
    return rng.uniform(-bound, bound, (classes, width + 1)).astype(np.float32)


def every_class(rows: Floats | Doubles) -> ClassRows:
    """Return a row for each class (k, d + 1) as it travels, each of weight 1."""
    classes = np.arange(len(rows), dtype=np.int32)
    return ClassRows(classes=classes, rows=rows.astype(np.float32), counts=np.ones_like(classes))


def items_of(uploads: list[ClassRows]) -> tuple[Floats, Ints]:
    """Return the rows of several devices as a training set (n, d) with labels (n,): one item per device and class."""
    rows = np.concatenate([up.rows for up in uploads]).astype(np.float32)
    return rows, np.concatenate([up.classes for up in uploads]).astype(np.int64)


def trained_layer(
    layer: Floats, x: Floats, y: Ints, *, epochs: int, rate: float, batch: int, rng: np.random.Generator
) -> Floats:
    """Return the layer (k, d + 1) after SGD on CE(y, W x + b), in f8: x (n, d), y (n,).

    Each epoch has another order; the last mini-batch of an epoch may be smaller.
    """
    at, inputs = layer.astype(np.float64), _with_one(x)  # (k, d + 1), (n, d + 1)
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for start in range(0, len(y), batch):
            chosen = order[start : start + batch]
            slope = CrossEntropy().slope(Seen(inputs[chosen] @ at.T, y[chosen]))  # (b, k)
            at -= rate * slope.T @ inputs[chosen]
    return at.astype(np.float32)


def figures(layer: Floats, x: Floats, y: Ints) -> tuple[float, float]:
    """Return the mean cross-entropy of a layer (k, d + 1) on x (n, d) and y (n,), and the share that it gets right."""
    logits = _with_one(x) @ layer.T.astype(np.float64)  # (n, k)
    return CrossEntropy().value(Seen(logits, y)), float((logits.argmax(axis=1) == y).mean())


def _with_one(x: Floats) -> Doubles:
    found: Doubles = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return found
