"""A weighted sum of weights that merges exactly, in two f8 numbers a scalar however many devices there are.

Every product count * value is rounded to a grid of multiples of 2^-36, and whole numbers of these units are added up.
No addition rounds, so any order and any split of the same uploads gives the same bits.  What is lost is at most 2^-37
for each upload, before the division by the sum of counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RunFailed
from edge_sdk.protocol.knowledge import Weights

MOST_COUNT = 2**33
"""Of all counts together: values up to 10^6 (knowledge.MAX_MAGNITUDE) times this stay below 2^53."""
_UNIT_BITS = 36
_UNIT = 2.0**-_UNIT_BITS
_NEAR = 2.0**15
"""Products below this are rounded by one addition; 2^12 of them have room in the units of an i8."""
_ROUNDER = 3 * _NEAR
"""From _NEAR below this to _NEAR above it, f8 are one unit apart: a sum with it is a rounded product, and its bits,
less those of the rounder alone, are the number of units."""
_ROUNDER_BITS = np.array([_ROUNDER]).view(np.int64)  # (1,)
_TOGETHER = 16
"""Uploads that wait for one another: their frames are in memory meanwhile."""
_PIECE = 2**15
"""Scalars added up at a time: so many fit into a core's cache, and take longer than the calls."""

Doubles = NDArray[np.float64]
Units = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WeightedSum:
    """The sum of count * values over some devices; also the upload of the lowest-numbered one, as it came.

    Uploads wait until there are some, and are added together, piece by piece of the weights: so the sum goes through
    the processor's cache once for all of them.
    """

    coarse: Doubles | None = None  # (p,) whole numbers
    fine: Doubles | None = None  # (p,) multiples of 2^-36 in [0, 1), so that each sum has one form
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
        if count > MOST_COUNT:
            raise RunFailed(
                f"weights of {uploads} devices with {count} samples together: at most {MOST_COUNT} add up exactly; use "
                'weighting = "uniform", or fewer devices'
            )
        named = [each for each in (self.first, other.first) if each is not None]
        first = min(named, key=lambda each: each[0], default=None)
        coarse, fine = _both(self, other)
        merged = WeightedSum(coarse, fine, count, uploads, first, self.waiting + other.waiting)
        return merged.added_up() if len(merged.waiting) >= _TOGETHER else merged

    def added_up(self) -> WeightedSum:
        """With nothing waiting."""
        if not self.waiting:
            return self
        size = self.waiting[0].values.size
        coarse, fine = (np.zeros(size) if part is None else part.copy() for part in (self.coarse, self.fine))
        room = np.empty(min(size, _PIECE))
        for begin in range(0, size, _PIECE):
            piece = slice(begin, begin + _PIECE)
            units = _units(fine[piece]) - len(self.waiting) * _ROUNDER_BITS  # beyond 2^63 an i8 goes on at the start
            product = room[: len(units)]
            for each in self.waiting:
                _multiply(each.values[piece], each.count, product, coarse[piece])
                product += _ROUNDER
                units += product.view(np.int64)
            fine[piece] = _carried(units, coarse[piece])
        return replace(self, coarse=coarse, fine=fine, waiting=())

    def minus(self, part: WeightedSum) -> WeightedSum:
        """Without uploads that are in it, and without a word on which is the first: to the bit the sum of the rest."""
        whole, part = self.added_up(), part.added_up()
        if whole.coarse is None or whole.fine is None or part.coarse is None or part.fine is None:
            return self
        count, uploads = self.count - part.count, self.uploads - part.uploads
        if not uploads:
            return WeightedSum()
        coarse = whole.coarse - part.coarse
        return WeightedSum(coarse, _carried(_units(whole.fine - part.fine), coarse), count, uploads)

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


def _both(a: WeightedSum, b: WeightedSum) -> tuple[Doubles | None, Doubles | None]:
    """What is in both sums, but for what waits."""
    if a.coarse is None or a.fine is None:
        return b.coarse, b.fine
    if b.coarse is None or b.fine is None:
        return a.coarse, a.fine
    coarse = a.coarse + b.coarse
    return coarse, _carried(_units(a.fine + b.fine), coarse)


def _multiply(values: NDArray[np.floating], count: int, product: Doubles, coarse: Doubles) -> None:
    """Let product be count * values; where those go far, but for whole numbers, which coarse is given."""
    np.copyto(product, values)
    product *= count
    if count * max(values.max(), -values.min()) >= _NEAR:
        whole = np.rint(product)
        coarse += whole
        product -= whole


def _units(fine: Doubles) -> Units:
    return (fine * 2.0**_UNIT_BITS).astype(np.int64)


def _carried(units: Units, coarse: Doubles) -> Doubles:
    """The fine part of so many units; the whole numbers in them are added to coarse."""
    coarse += units >> _UNIT_BITS
    fine: Doubles = (units & (2**_UNIT_BITS - 1)) * _UNIT
    return fine
