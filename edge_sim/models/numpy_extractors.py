"""Models with a frozen random body in numpy, under a trainable head: architectures that a base install can run."""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models.body_model import BodyModel
from edge_sdk.models.checks import check_samples
from edge_sdk.models.cosine_head import make_head
from edge_sim.models.model_types import HeadKind, InputShape

HIDDEN = 128
"""Width of the random layer."""
FILTERS = 16
"""Number of random 3 x 3 filters."""
CELLS = 4
"""Their answers are averaged over a grid of at most this many rows and columns."""
_GAIN = 2.5
"""He initialisation supposes inputs of unit variance; pixels in 0..1 have about a sixth of that."""


class Extractor(Protocol):
    """A frozen function from samples to features."""

    width: int
    flops: int
    """Floating-point operations for one sample."""
    note: str

    def __call__(self, x: Floats) -> Floats:
        """Return the features: (n, c, h, w) -> (n, width)."""


class RandomLayer:
    """One random layer on all pixels, with ReLU."""

    def __init__(self, shape: InputShape, seed: int) -> None:
        pixels = prod(shape)
        self._weights = _random((pixels, HIDDEN), pixels, seed)
        self.width, self.flops = HIDDEN, 2 * pixels * HIDDEN
        self.note = f"frozen random layer of {HIDDEN}, seed {seed}"

    def __call__(self, x: Floats) -> Floats:
        """Implement Extractor."""
        centred = x.reshape(len(x), -1) - 0.5  # so that a pixel's sign counts
        out: Floats = np.maximum(centred @ self._weights, 0)
        return out


class RandomFilters:
    """Random 3 x 3 filters with ReLU, averaged over a grid of cells."""

    def __init__(self, shape: InputShape, seed: int) -> None:
        channels, height, width = shape
        self._weights = _random((channels * 9, FILTERS), channels * 9, seed)
        self._rows, self._columns = _starts(height), _starts(width)
        self.width = FILTERS * len(self._rows) * len(self._columns)
        self.flops = 2 * channels * 9 * FILTERS * height * width
        self.note = f"frozen random 3x3 filters, seed {seed}"

    def __call__(self, x: Floats) -> Floats:
        """Implement Extractor."""
        n, channels, height, width = x.shape
        framed = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        patches = sliding_window_view(framed, (3, 3), axis=(2, 3))  # (n, c, h, w, 3, 3)
        rows = patches.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, channels * 9)
        answers = np.maximum(rows @ self._weights, 0).reshape(n, height, width, FILTERS)
        sums = np.add.reduceat(np.add.reduceat(answers, self._rows, axis=1), self._columns, axis=2)
        sizes = np.diff([*self._rows, height])[:, None] * np.diff([*self._columns, width])  # pixels of each cell
        means: Floats = (sums / sizes[..., None]).astype(np.float32)
        return means.reshape(n, -1)


class FrozenNumpyModel(BodyModel):
    """A frozen extractor in numpy, under a head that is trained."""

    def __init__(
        self,
        body: Extractor,
        classes: int,
        input_shape: InputShape,
        *,
        seed: int,
        preprocess: Preprocess,
        name: str,
        head: HeadKind = "linear",
    ) -> None:
        """Take samples (c, h, w) = `input_shape` from `preprocess`; seed: of the head."""
        super().__init__(
            body,
            make_head(head, body.width, classes, seed),
            name=name,
            runtime="numpy",
            preprocess=preprocess,
            flops=body.flops,
            note=body.note,
        )
        self._input_shape = input_shape

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the features of some samples: x (n, c, h, w), index (m,) -> (m, d)."""
        check_samples(self.spec.name, x, self._input_shape)
        return super().feature_rows(x, index)


def _random(shape: tuple[int, int], inputs: int, seed: int) -> Floats:
    scale = _GAIN * np.sqrt(2 / inputs)
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


def _starts(length: int) -> Ints:
    """Return where the cells of one axis begin: at most CELLS, of about equal length."""
    cells = min(CELLS, length)
    return np.arange(cells) * length // cells
