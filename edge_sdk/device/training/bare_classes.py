"""Detects classes whose mean would be a sample: those with one sample, under a model whose features are its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import NotReleased

Bools: TypeAlias = NDArray[np.bool_]
_WHY = "this model's features are its inputs, so that the mean of a class with one sample is that sample"


def only_samples(by_class: tuple[Ints, Ints, Ints]) -> Ints:
    """Return the indices of samples that are alone in their class (s,).

    by_class: the classes held (m,), the index of each sample's class (n,), the samples of each class (m,).
    """
    _, at, counts = by_class
    return np.flatnonzero(counts[at] == 1)


class BareClasses:
    """Finds such classes in one pass over the features of a device's samples."""

    def __init__(self, samples: Floats, by_class: tuple[Ints, Ints, Ints], alone: Ints) -> None:
        """samples: after preprocessing (n, c, h, w).  by_class, alone: the argument and result of `only_samples`."""
        self._samples, (self._classes, self._at, _), self._alone = samples, by_class, alone
        self.found: Bools = np.zeros(len(self._classes), np.bool_)
        """Which of the classes held were found so far (m,)."""

    def see(self, part: slice, features: Floats) -> None:
        """Compare the features of some samples (b, d) with the model's inputs."""
        if not self._alone.size or self._samples[0].size != features.shape[1]:
            return
        alone = self._alone[(self._alone >= part.start) & (self._alone < part.stop)]
        inputs = self._samples[alone].reshape(len(alone), features.shape[1])  # (a, c * h * w)
        bare = alone[(inputs == features[alone - part.start]).all(axis=1)]
        self.found[self._at[bare]] = True

    def kept(self, tell: Callable[[str], None]) -> Bools | slice:
        """Return an index of the classes that may be uploaded (m,).  tell: called with a line if some may not.

        Raises NotReleased if none may.
        """
        if not self.found.any():
            return slice(None)
        left_out = ", ".join(map(str, self._classes[self.found]))
        tell(f"class {left_out} has one sample, and is left out of uploads: {_WHY}")
        if self.found.all():
            raise NotReleased(f"every class has one sample, and {_WHY}: gather more")
        return ~self.found
