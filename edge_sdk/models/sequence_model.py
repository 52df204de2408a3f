"""A linear head on fixed features of series or texts, in numpy alone: for boards without torch and ONNX Runtime.

The features are the same on all devices, so heads and rows of features can be compared and averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError
from edge_sdk.models.body_model import BodyModel
from edge_sdk.models.checks import check_samples, check_whole_number, input_shape_of, with_steps
from edge_sdk.models.cosine_head import make_head
from edge_sdk.sample_kind import RAGGED, SERIES, steps_there

KERNEL = 9
"""Steps that a random convolution looks at."""
_DRAW_STREAM = 31
"""Keeps these random numbers apart from others; they have no other seed, since all devices draw the same."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 by the golden ratio: spreads numbers that are close to each other (Knuth, TAOCP 3, 6.4)."""
_PLACES = 64
"""Places of a series at which convolutions look, at most."""
_LENGTH = 16.0
"""The longest that a row of features can be: plain steps at a rate of .01 still converge."""
_TOGETHER = 64
"""Samples that are convolved together: some megabytes."""


class SequenceModel(BodyModel):
    """Random convolutions of a series, or hashed words and word pairs of a text, under a trained head."""

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, ...],
        *,
        seed: int,
        preprocess: Preprocess,
        features: int | None = None,
        name: str | None = None,
        head: Literal["linear", "cosine"] = "linear",
    ) -> None:
        """Make a model with a random head, drawn from `seed`.

        input_shape: of a sample: (t, d) or (t,).
        preprocess: declares the kind of the samples: series or tokens.
        features: the number of features, by default 256 for series and 4,096 for texts.  With fewer, more words of a
        text share a feature.

        Raises ModelError for other kinds, and for numbers out of range.
        """
        kind = preprocess.declared
        if kind is None or kind.name not in (*SERIES, "tokens"):
            raise ModelError(
                f"SequenceModel: takes series and tokens, its preprocess declares {kind or 'no kind'}: give "
                'preprocess=edge_sdk.Preprocess(kind="series"), or kind="tokens" with vocabulary'
            )
        of_series = kind.name in SERIES
        name = name or ("numpy-series" if of_series else "numpy-text")
        features = (256 if of_series else 4096) if features is None else features
        check_whole_number(name, "features", features, 2)
        self._input_shape = input_shape_of(name, input_shape)
        steps, depth = self._input_shape[1:]
        body: Callable[[Floats], Floats]
        if of_series:
            places = min(steps, _PLACES)
            body, flops = (
                RandomConvolutions(steps, depth, features, kind.name == RAGGED),
                2 * KERNEL * depth * places * features,
            )
            note = f"{features} fixed random convolutions"
        else:
            body, flops = HashedWords(features), 4 * depth
            note = f"words and pairs of words in {features} buckets"
        super().__init__(
            body,
            make_head(head, features, classes, seed),
            name=name,
            runtime="numpy",
            preprocess=with_steps(preprocess, self._input_shape),
            flops=flops,
            note=note,
        )

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the features of some samples: x (n, c, h, w), index (m,) -> (m, d)."""
        check_samples(self.spec.name, x, self._input_shape)
        return super().feature_rows(x, index)


class RandomConvolutions:
    """The share of steps at which a random convolution is above 0, for each of many (ROCKET: Dempster et al., 2020)."""

    def __init__(self, steps: int, depth: int, features: int, ragged: bool = False) -> None:
        """steps, depth: of a series (t, d).  ragged: whether steps of 0 at its end are padding."""
        self._ragged = ragged
        rng, self._every = np.random.default_rng(_DRAW_STREAM), -(-steps // _PLACES)
        self._scale = np.float32(_LENGTH / np.sqrt(features))
        widest = max(1, (steps - 1) // (KERNEL - 1))
        dilations = np.unique(2 ** np.arange(1 + int(np.log2(widest))))
        shares = np.array_split(np.arange(features), len(dilations))
        self._banks = [(int(each), *_drawn(rng, depth, len(own))) for each, own in zip(dilations, shares, strict=True)]

    def __call__(self, x: Floats) -> Floats:
        """Return features around 0: (n, 1, t, d) -> (n, features)."""
        parts = [self._of_few(x[start : start + _TOGETHER, 0]) for start in range(0, max(len(x), 1), _TOGETHER)]
        return np.concatenate(parts)

    def _of_few(self, x: Floats) -> Floats:
        """Return the features of a few series (n, t, d)."""
        found = []
        there = steps_there(x)[:, :: self._every, None]  # (n, places, 1)
        for dilation, weights, bias in self._banks:
            reach = dilation * (KERNEL // 2)
            framed = np.pad(x, ((0, 0), (reach, reach), (0, 0)))
            windows = sliding_window_view(framed, 2 * reach + 1, axis=1)[:, :: self._every, :, ::dilation]
            seen = windows.reshape(len(x) * windows.shape[1], -1)  # (n * places, d * KERNEL)
            above = (seen @ weights + bias > 0).reshape(len(x), -1, len(bias))
            share = above.mean(axis=1, dtype=np.float32)
            if self._ragged:
                share = (above & there).sum(axis=1, dtype=np.float32) / there.sum(axis=1).clip(1)
            found.append(self._scale * (2 * share.astype(np.float32, copy=False) - 1))
        return np.concatenate(found, axis=1)


def _drawn(rng: np.random.Generator, depth: int, count: int) -> tuple[Floats, Floats]:
    """Draw convolutions of some of the sensors each: (depth * KERNEL, count), whose weights sum to 0, and biases."""
    weights = rng.normal(size=(depth, KERNEL, count))
    weights -= weights.mean(axis=1, keepdims=True)
    looks_at = rng.random((depth, count)) < np.minimum(1, 3 / depth)
    looks_at[rng.integers(depth, size=count), np.arange(count)] = True
    weights *= looks_at[:, None, :] / np.sqrt(KERNEL * looks_at.sum(axis=0))
    return weights.reshape(-1, count).astype(np.float32), rng.uniform(-1, 1, count).astype(np.float32)


class HashedWords:
    """Counts of words and of pairs of neighbours, each in a bucket and with a sign (Weinberger et al., ICML 2009)."""

    def __init__(self, features: int) -> None:
        self._features = features

    def __call__(self, x: Floats) -> Floats:
        """Return the counts: ids (n, 1, 1, t) -> (n, features); the id 0 is padding."""
        ids = x[:, 0, 0].astype(np.uint64)  # (n, t)
        grams = np.concatenate([_mixed(ids), _mixed(ids[:, :-1] * _MIX + ids[:, 1:])], axis=1)
        there = np.concatenate([ids > 0, (ids[:, :-1] > 0) & (ids[:, 1:] > 0)], axis=1)
        signs = np.where(grams >> np.uint64(63), 1, -1) * there
        buckets = (grams % np.uint64(self._features)).astype(np.int64) + self._features * np.arange(len(x))[:, None]
        sums = np.bincount(buckets.ravel(), signs.ravel(), len(x) * self._features)
        return sums.reshape(len(x), self._features).astype(np.float32)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers whose every bit depends on all bits of the given ones."""
    once = (numbers ^ (numbers >> np.uint64(31))) * _MIX
    twice: NDArray[np.uint64] = (once ^ (once >> np.uint64(29))) * _MIX
    return twice
