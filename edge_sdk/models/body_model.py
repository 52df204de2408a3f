"""A body under a head that is trained in numpy, of models from files or with random bodies; and a cache of features."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.numpy_model import HeadModel, head_spec
from edge_sdk.models.trained_body import ArrangedBody, TrainedBody

CACHED_ARRAYS = 4
"""The device's training and test samples, the public samples, and one more array."""
CACHED_BYTES = 32 * 1024 * 1024
"""The cached bytes per array: 10,000 samples with 800 features.  Features of larger arrays are computed each time."""


@dataclass(slots=True, eq=False)
class _Entry:
    source: weakref.ref[Floats]
    known: NDArray[np.bool_]  # (n,)
    rows: Floats  # (n, d)


class FeatureCache:
    """Runs each sample of an array through a frozen function once, and not in each epoch, where most of the time goes.

    The key is the identity of the array, not its content: hashing would cost as much as it saves, and samples do not
    change.  A weak reference drops the features together with the samples, before another array can have their address.
    """

    def __init__(self, function: Callable[[Floats], Floats], width: int) -> None:
        """Set `function`: (n, ...) -> (n, width), which treats each row independently."""
        self._function = function
        self._width = width
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self, x: Floats, index: Ints) -> Floats:
        """Return function(x)[index], a copy: x (n, ...), index (m,) -> (m, d)."""
        source, start = _whole(x)
        if len(source) * self._width * 4 > CACHED_BYTES:
            return self._function(x[index])
        entry = self._entry(source)
        wanted = index + start
        missing = np.unique(wanted[~entry.known[wanted]])
        if len(missing):
            entry.rows[missing] = self._function(source[missing])
            entry.known[missing] = True
        return entry.rows[wanted]

    def _entry(self, source: Floats) -> _Entry:
        """Return the entry of an array, and mark it as used last."""
        key = id(source)
        entry = self._entries.pop(key, None)
        if entry is None:
            while len(self._entries) >= CACHED_ARRAYS:
                self._entries.pop(next(iter(self._entries)))
            known, rows = np.zeros(len(source), np.bool_), np.empty((len(source), self._width), np.float32)
            entry = _Entry(weakref.ref(source, lambda _: self._entries.pop(key, None)), known, rows)
        self._entries[key] = entry
        return entry


def _whole(x: Floats) -> tuple[Floats, int]:
    """Return the array that a slice of consecutive samples was cut from, and its start; else x itself and 0.

    A slice is a new object each time; the array behind it is not.
    """
    base = x.base
    if not isinstance(base, np.ndarray) or (base.dtype, base.shape[1:]) != (x.dtype, x.shape[1:]):
        return x, 0
    if base.strides != x.strides or not len(x) or not base.flags.c_contiguous:
        return x, 0
    return base, (x.ctypes.data - base.ctypes.data) // x.strides[0]


class BodyModel(HeadModel):
    """A function from samples to features, under a trainable head; it remembers the features that a frozen one gave."""

    def __init__(
        self,
        body: Callable[[Floats], Floats] | ArrangedBody[TrainedBody],
        head: LinearHead,
        *,
        name: str,
        runtime: str,
        preprocess: Preprocess | None,
        flops: int,
        note: str,
    ) -> None:
        """Set body: (n, c, h, w) -> (n, width), row by row, or one that learns; flops: its operations per sample."""
        classes, width = head.rows.shape[0], head.rows.shape[1] - 1
        flops += 2 * width * classes
        spec = head_spec(name, runtime, head, preprocess, flops=flops, note=note, bytes_per_sample=4 * width, calls=2)
        spec = replace(spec, parameters=head.values().size)
        self._cache: FeatureCache | None = None
        """None in a copy for serving: what it is asked about comes once, and from several threads."""
        if isinstance(body, ArrangedBody):
            super().__init__(spec, head, body)
            self._function: Callable[[Floats], Floats] = body.body.rows
            return
        super().__init__(spec, head)
        self._function = body
        self._cache = FeatureCache(body, width)

    def separate(self) -> None:
        """Take weights of its own; a frozen body stays shared."""
        super().separate()
        self._cache = None
        if self._body is not None:
            self._function = self._body.rows

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the body's output for some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""
        return self._function(x[index]) if self._cache is None else self._cache.rows(x, index)
