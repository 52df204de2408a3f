"""Classes whose mean would be a sample: those with one sample, under a model whose features are its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import NotReleased

Bools: TypeAlias = NDArray[np.bool_]
_WHY = "this model's features are its inputs, so that the mean of a class with one sample is that sample"


class BareClasses:
    """Finds them among the samples of a device in one pass over their features."""

    def __init__(self, samples: Floats, by_class: tuple[Ints, Ints, Ints]) -> None:
        """samples: after preprocessing (n, c, h, w).  by_class: classes, index of each sample's class, counts."""
        self._samples, (self._classes, self._at, counts) = samples, by_class
        self._alone = counts[self._at] == 1  # (n,)
        self.found: Bools = np.zeros(len(counts), np.bool_)
        """Which of the classes held are such, among the samples that were seen (m,)."""

    def see(self, part: slice, features: Floats) -> None:
        """Compare the features of some samples (b, d) with what the model was given."""
        alone = np.flatnonzero(self._alone[part])
        inputs = self._samples[part][alone].reshape(len(alone), self._samples[0].size)  # (a, c * h * w)
        if len(alone) and inputs.shape[1] == features.shape[1]:
            bare = alone[(inputs == features[alone]).all(axis=1)]
            self.found[self._at[part][bare]] = True

    def kept(self, tell: Callable[[str], None]) -> Bools:
        """Return which classes may be told of (m,).  tell: is called with a line if some may not.

        Raises NotReleased if none may.
        """
        if self.found.any():
            left_out = ", ".join(map(str, self._classes[self.found]))
            line = f"class {left_out} has one sample, and is left out of what is uploaded: {_WHY}"
            tell(line)
            if self.found.all():
                raise NotReleased(f"every class has one sample, and {_WHY}: gather more")
        return ~self.found
