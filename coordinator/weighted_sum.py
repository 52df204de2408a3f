"""A weighted sum of weights that merges exactly, in two f8 numbers a scalar however many devices there are.

Every product count * value is split on two fixed grids, whole numbers and multiples of 2^-36, and each part is summed
by itself.  Within the stated bounds all partial sums are multiples of their grid of fewer than 53 bits, so no addition
rounds, and any order and split of the same uploads gives the same bits.  What is lost is below 2^-37 for each upload,
before the division by the sum of counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RunFailed
from edge_sdk.protocol.knowledge import Weights

MOST_COUNT = 2**33
"""Of all counts together: values up to 10^6 (knowledge.MAX_MAGNITUDE) times this stay below 2^53."""
MOST_UPLOADS = 2**17
"""Remainders of at most a half, so many of them, stay below 2^53 multiples of 2^-36."""
_FINE = 2.0**36
_TOGETHER = 16
"""Uploads that wait for one another: their frames are in memory meanwhile."""
_PIECE = 4096
"""Scalars: of so many uploads, in f8, they fit into a core's cache."""

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class WeightedSum:
    """The sum of count * values over some devices; also the upload of the lowest-numbered one, as it came.

    Uploads wait until there are some, and are added together, piece by piece of the weights: so the sum goes through
    the processor's cache once for all of them.
    """

    coarse: Doubles | None = None  # (p,) whole numbers
    fine: Doubles | None = None  # (p,) multiples of 2^-36
    count: int = 0
    uploads: int = 0
    first: tuple[int, Weights] | None = None
    """(device number, weights) of the lowest number."""
    waiting: tuple[Weights, ...] = ()
    """Counted above, and not yet in the sums."""

    def add(self, number: int, weights: Weights) -> WeightedSum:
        """With the upload of one more device, weighted by its count."""
        return self.merge(WeightedSum(None, None, weights.count, 1, (number, weights), (weights,)))

    def merge(self, other: WeightedSum) -> WeightedSum:
        """Both together.  Raises RunFailed where so many would not add up exactly."""
        if not self.uploads or not other.uploads:
            return self if self.uploads else other
        count, uploads = self.count + other.count, self.uploads + other.uploads
        if count > MOST_COUNT or uploads > MOST_UPLOADS:
            raise RunFailed(
                f"weights of {uploads} devices with {count} samples together: at most {MOST_UPLOADS} and {MOST_COUNT} "
                'add up exactly; use weighting = "uniform", or fewer devices'
            )
        named = [each for each in (self.first, other.first) if each is not None]
        first = min(named, key=lambda each: each[0], default=None)
        coarse, fine = _both(self.coarse, other.coarse), _both(self.fine, other.fine)
        merged = WeightedSum(coarse, fine, count, uploads, first, self.waiting + other.waiting)
        return merged.added_up() if len(merged.waiting) >= _TOGETHER else merged

    def added_up(self) -> WeightedSum:
        """With nothing waiting."""
        if not self.waiting:
            return self
        size = self.waiting[0].values.size
        coarse, fine = (np.zeros(size) if part is None else part.copy() for part in (self.coarse, self.fine))
        counts = np.array([each.count for each in self.waiting], np.float64)[:, None]
        for begin in range(0, size, _PIECE):
            piece = slice(begin, begin + _PIECE)
            product = np.stack([each.values[piece] for each in self.waiting]) * counts  # (n, piece)
            whole = np.rint(product)
            coarse[piece] += whole.sum(axis=0)
            product -= whole
            product *= _FINE
            fine[piece] += np.rint(product, out=product).sum(axis=0) / _FINE
        return replace(self, coarse=coarse, fine=fine, waiting=())

    def minus(self, part: WeightedSum) -> WeightedSum:
        """Without uploads that are in it, and without a word on which is the first: to the bit the sum of the rest."""
        whole, part = self.added_up(), part.added_up()
        if whole.coarse is None or whole.fine is None or part.coarse is None or part.fine is None:
            return self
        count, uploads = self.count - part.count, self.uploads - part.uploads
        if not uploads:
            return WeightedSum()
        return WeightedSum(whole.coarse - part.coarse, whole.fine - part.fine, count, uploads)

    def mean(self) -> Weights:
        """The weighted mean, as f4.  Raises ValueError for no uploads."""
        values = self.mean_values()
        if self.first is None:
            raise ValueError("no layout")
        return Weights(values=values, layout=self.first[1].layout)

    def mean_values(self) -> NDArray[np.float32]:
        """The weighted mean alone: f4 (p,).  Raises ValueError for no uploads."""
        total = self.added_up()
        if total.coarse is None or total.fine is None:
            raise ValueError("no weights")
        values: NDArray[np.float32] = ((total.coarse + total.fine) / total.count).astype(np.float32)
        return values

    def start(self, how: str) -> Weights:
        """What round 0 makes of models that may have nothing in common: see contracts.sharing.check_mean."""
        if how == "equal" or self.first is None:
            return self.mean()
        _, weights = self.first
        return Weights(values=weights.values, layout=weights.layout)


def _both(a: Doubles | None, b: Doubles | None) -> Doubles | None:
    return a if b is None else b if a is None else a + b
