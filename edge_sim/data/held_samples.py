"""The samples of one device: indices into the arrays of the data set, of which a copy exists while the device works.

Inputs that many devices share are preprocessed once: the public set and the test set.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import LocalData, Preprocess, Raw
from edge_sdk.protocol.frames.value_range import note_shared
from edge_sim.data.datasets import Dataset
from edge_sim.data.draw import check_cut, cut, draw_held


class PartSizes(NamedTuple):
    """How many samples each part of a device's data has."""

    train: int
    test: int
    validation: int
    local_test: int


MOST_DRAWN = 1024
"""Devices whose parts are kept."""


@dataclass(frozen=True, slots=True)
class IndexedSamples:
    """Indices of private samples, and how they are divided into parts.  Pickled, it becomes a copy of its samples."""

    dataset: Dataset
    rows: Ints  # (n,)
    """Ascending."""
    split: tuple[float, ...]
    number: int
    """The device's number, which seeds the draw of the parts."""

    def __post_init__(self) -> None:
        check_cut(len(self.rows), self.split)

    @property
    def counts(self) -> PartSizes:
        """The sizes of its parts."""
        validation, test = check_cut(len(self.rows), self.split)
        return PartSizes(len(self.rows) - validation - test, len(self.dataset.test), validation, test)

    @property
    def form(self) -> tuple[object, ...]:
        """What is alike on devices of a kind: the form of a sample, the classes, and which parts there are."""
        train = self.dataset.private
        return train.x.shape[1:], train.x.dtype, train.class_names, tuple(map(bool, self.counts))

    @property
    def sample_bytes(self) -> int:
        """The size of one sample as it was recorded."""
        x = self.dataset.private.x
        return int(x.itemsize) * math.prod(x.shape[1:])

    def class_counts(self, classes: int) -> tuple[int, ...]:
        """Return the number of training samples of each class; all labels lie in 0..classes-1."""
        y = self.dataset.private.y[self.rows]
        counts = np.bincount(y, minlength=classes)
        if any(check_cut(len(y), self.split)):
            held = y[self._held_out(y)]
            counts -= np.bincount(held, minlength=len(counts))
        return tuple(counts.tolist())

    def _held_out(self, y: Ints) -> Ints:
        """Return the indices of the samples that are not trained on; a device that does not work draws no parts."""
        if self._key in self.dataset.drawn:
            return np.concatenate(self._parts(y)[1:])
        return draw_held(y, self.split, self._rng())

    def data(self) -> LocalData:
        """Copy the samples."""
        own = self.dataset.private.at(self.rows)
        train, validation, local_test = self._parts(own.y)
        return LocalData(
            train=own if len(train) == len(own) else own.at(train),
            test=self.dataset.test,
            validation=own.at(validation) if len(validation) else None,
            local_test=own.at(local_test) if len(local_test) else None,
            augment=self.dataset.augment,
        )

    def _parts(self, y: Ints) -> Sequence[Ints]:
        """Draw the parts, and keep them for a while: a device that works needs them more than once."""
        drawn, key = self.dataset.drawn, self._key
        if key not in drawn:
            if len(drawn) >= MOST_DRAWN:
                del drawn[next(iter(drawn))]
            parts = cut(y, self.split, self._rng())
            drawn[key] = self.rows, parts
        return drawn[key][1]

    @property
    def _key(self) -> tuple[int, tuple[float, ...], int]:
        return id(self.rows), self.split, self.number

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.dataset.seed, 5, self.number])

    def __reduce__(self) -> tuple[Any, ...]:
        """Become a copy in another process, which has no data set."""
        return CopiedSamples, (self.data(),)


@dataclass(frozen=True, slots=True)
class CopiedSamples:
    """The samples of one device themselves."""

    samples: LocalData

    @property
    def counts(self) -> PartSizes:
        """The sizes of its parts."""
        return PartSizes(*(len(getattr(self.samples, part) or ()) for part in PartSizes._fields))

    @property
    def form(self) -> tuple[object, ...]:
        """What is alike on devices of a kind: the form of a sample, the classes, and which parts there are."""
        train = self.samples.train
        return train.x.shape[1:], train.x.dtype, train.class_names, tuple(map(bool, self.counts))

    @property
    def sample_bytes(self) -> int:
        """The size of one sample as it was recorded."""
        x = self.samples.train.x
        return int(x.itemsize) * math.prod(x.shape[1:])

    def class_counts(self, classes: int) -> tuple[int, ...]:
        """Return the number of training samples of each class."""
        return self.samples.class_counts(classes)

    def data(self) -> LocalData:
        """Return the samples."""
        return self.samples


Held: TypeAlias = IndexedSamples | CopiedSamples
"""The samples that a device holds."""


_KEPT = 8
"""Number of results that are kept: the public and the test set for a few kinds of devices, and others in between."""
_known: deque[tuple[Raw, Preprocess, Floats]] = deque(maxlen=_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPreprocess(Preprocess):
    """Returns the same array for the same input array, as long as that is among the last few."""

    def __call__(self, raw: Raw) -> Floats:
        """Implement Preprocess; the result is shared, so callers must not change it."""
        for at, (known, by, found) in enumerate(_known):
            if known is raw and by == self:
                del _known[at]
                _known.append((raw, self, found))
                return found
        found = Preprocess.__call__(self, raw)
        if found.size:
            note_shared(found)
        _known.append((raw, self, found))
        return found
