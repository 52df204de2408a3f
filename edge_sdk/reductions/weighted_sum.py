"""A weighted sum of weights that merges exactly, in 8 bytes a scalar, at most 16, however many devices there are.

Every product count * value is rounded to a grid of multiples of 2^-36, and whole numbers of these units are added up.
No addition rounds, so any order and any split of the same uploads gives the same bits.  What is lost is at most 2^-37
for each upload, before the division by the sum of counts.

`SlotSum` is such a sum over the newest uploads of all devices, those that stay away included (FedKF's technique T1).
A device that answers adds its new weights, and its earlier ones, which are in the ledger, are subtracted to the bit.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles
from edge_sdk.errors import RunFailed
from edge_sdk.protocol.frames.schema import Blob, Count, Integer, Tensor, wire
from edge_sdk.protocol.frames.value_range import min_max
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions.bag import Bag, Contribution

MOST_COUNT = 2**33
"""The largest sum of all counts: values up to 10^6 (knowledge.MAX_MAGNITUDE) times this stay below 2^53."""
MOST_UPLOADS = 2**17
"""The largest number of uploads: this many products below _NEAR fit into the units of an i8, twice."""
_UNIT_BITS = 36
_NEAR = 2.0**9
"""Products below this count in units directly; the whole numbers of larger ones are added up separately."""
_ROUNDER = 3 * 2.0**15
"""f8 around this are one unit apart: a sum with it is a rounded product, and its bits, less those of the rounder alone,
are the number of units."""
_ROUNDER_BITS = np.array([_ROUNDER]).view(np.int64)  # (1,)
_TOGETHER = 16
"""The number of uploads that are added together; their frames stay in memory until then."""
_PIECE = 2**15
"""The scalars that are added at a time: they fit into a core's cache, and take longer than the calls."""

Units: TypeAlias = NDArray[np.int64]
Array = TypeVar("Array", Doubles, Units)


@dataclass(frozen=True, slots=True, eq=False)
class WeightedSum:
    """The sum of count * values over some devices, with the upload of the lowest-numbered device unchanged.

    Uploads wait until there are several, and are then added together, piece by piece of the weights: so the sum passes
    through the processor's cache once for all of them.
    """

    units: Units | None = None  # (p,) of 2^-36
    whole: Doubles | None = None  # (p,) whole numbers, or None if `units` holds everything
    count: int = 0
    uploads: int = 0
    first: tuple[int, Weights] | None = None
    """The lowest device number and its weights."""
    waiting: tuple[Weights, ...] = ()
    """The uploads that `count` includes, and that are not yet in the sums."""

    def add(self, number: int, weights: Weights) -> WeightedSum:
        """Return the sum with the upload of one more device, weighted by its count."""
        return self.merge(WeightedSum(None, None, weights.count, 1, (number, weights), (weights,)))

    def merge(self, other: WeightedSum) -> WeightedSum:
        """Merge both sums.  Raises RunFailed if there are too many uploads for exact addition."""
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
        units, whole = _both(self.units, other.units), _both(self.whole, other.whole)
        merged = WeightedSum(units, whole, count, uploads, first, self.waiting + other.waiting)
        return merged.added_up() if len(merged.waiting) >= _TOGETHER else merged

    def added_up(self) -> WeightedSum:
        """Return the sum with no uploads waiting."""
        if not self.waiting:
            return self
        size = self.waiting[0].values.size
        far = [_reach(each) >= _NEAR for each in self.waiting]
        units = np.zeros(size, np.int64) if self.units is None else self.units.copy()
        whole = np.zeros(size) if self.whole is None and any(far) else copy(self.whole)
        room = np.empty(min(size, _PIECE))
        for begin in range(0, size, _PIECE):
            piece = slice(begin, begin + _PIECE)
            sums = units[piece]
            product = room[: len(sums)]
            for each, goes_far in zip(self.waiting, far, strict=True):
                np.copyto(product, each.values[piece])
                product *= each.count
                if goes_far and whole is not None:
                    rounded = np.rint(product)
                    whole[piece] += rounded
                    product -= rounded
                product += _ROUNDER
                sums += product.view(np.int64)
            sums -= len(self.waiting) * _ROUNDER_BITS  # an i8 wraps around at 2^63
        return replace(self, units=units, whole=whole, waiting=())

    def parts(self) -> tuple[Doubles, Doubles]:
        """Return the sum as whole numbers (p,) and multiples of 2^-36 in [0, 1) (p,); this form is unique.

        Raises ValueError for no uploads.
        """
        total = self.added_up()
        if total.units is None:
            raise ValueError("no weights")
        coarse = (total.units >> _UNIT_BITS).astype(np.float64)
        fine = (total.units & (2**_UNIT_BITS - 1)) * 2.0**-_UNIT_BITS
        return coarse if total.whole is None else coarse + total.whole, fine

    @classmethod
    def of(cls, coarse: Doubles, fine: Doubles, count: int, uploads: int) -> WeightedSum:
        """Make a sum from its parts, without the first upload."""
        return cls((fine * 2.0**_UNIT_BITS).astype(np.int64), coarse, count, uploads)

    def minus(self, part: WeightedSum) -> WeightedSum:
        """Return the sum without uploads that are in it, and without `first`: exactly the sum of the rest."""
        whole, part = self.added_up(), part.added_up()
        if whole.units is None or part.units is None:
            return self
        count, uploads = self.count - part.count, self.uploads - part.uploads
        if not uploads:
            return WeightedSum()
        apart = whole.whole if part.whole is None else _both(whole.whole, -part.whole)
        return WeightedSum(whole.units - part.units, apart, count, uploads)

    def mean(self) -> Weights:
        """Return the weighted mean, as f4.  Raises ValueError for no uploads."""
        values = self.mean_values()
        if self.first is None:
            raise ValueError("no layout")
        return Weights(values=values, layout=self.first[1].layout)

    def mean_values(self) -> NDArray[np.float32]:
        """Return only the values of the weighted mean: f4 (p,).  Raises ValueError for no uploads."""
        coarse, fine = self.parts()
        values: NDArray[np.float32] = ((coarse + fine) / self.count).astype(np.float32)
        return values

    def start(self, how: str) -> Weights:
        """Return the common start after round 0, whose models may have different starts.

        how: `first`, the model of the lowest-numbered device; `equal`, the mean, because all began with equal weights.
        """
        if how == "equal" or self.first is None:
            return self.mean()
        _, weights = self.first
        return Weights(values=weights.values, layout=weights.layout)


def _both(a: Array | None, b: Array | None) -> Array | None:
    return a if b is None else b if a is None else a + b


def _reach(weights: Weights) -> float:
    """Return the largest magnitude of a product."""
    low, high = min_max(weights.values)  # known already, where they came in a frame
    return weights.count * max(high, -low)


@dataclass(frozen=True, slots=True)
class MixedSum:
    """The sum of the payloads in the role `weights`, and all other payloads by device.

    A device without weights counts only for the other payloads.
    """

    weights: WeightedSum = field(default_factory=WeightedSum)
    rest: Bag = field(default_factory=Bag)

    @property
    def answered(self) -> int:
        """The number of devices that took part in the exchange."""
        return len(self.rest)

    def add(self, contribution: Contribution) -> MixedSum:
        """Return the aggregate with one more device."""
        known, weights = dict(contribution.knowledge), self.weights
        if "weights" in known:
            weights = weights.add(contribution.number, cast("Weights", known.pop("weights")))
        return MixedSum(weights, self.rest.add(replace(contribution, knowledge=known)))

    def merge(self, other: MixedSum) -> MixedSum:
        """Merge both aggregates."""
        return MixedSum(self.weights.merge(other.weights), self.rest.merge(other.rest))


Bits = Annotated[NDArray[np.uint8], Tensor(("u1",), 1)]  # (8 p,), the bytes of f8


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The change of the slots in a round: weights that came, and weights that were replaced or that expired."""

    now: WeightedSum = field(default_factory=WeightedSum)
    gone: WeightedSum = field(default_factory=WeightedSum)

    @property
    def answered(self) -> int:
        """The number of devices that brought weights."""
        return self.now.uploads

    def add(self, contribution: Contribution) -> Change:
        """Return the change with one more device; a device that has only an earlier upload has a slot that expired."""
        now, gone = self.now, self.gone
        if "weights" in contribution.knowledge:
            now = now.add(contribution.number, cast("Weights", contribution.knowledge["weights"]))
        if "weights" in contribution.before:
            gone = gone.add(contribution.number, cast("Weights", contribution.before["weights"]))
        return Change(now, gone)

    def merge(self, other: Change) -> Change:
        """Merge both changes."""
        return Change(self.now.merge(other.now), self.gone.merge(other.gone))


@wire("slot-sum")
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSum:
    """The exact sum of count * weights over all slots: 16 bytes a scalar, for any number of slots."""

    coarse: Bits
    fine: Bits
    count: Annotated[int, Integer(1)]
    slots: Count
    layout: Annotated[bytes, Blob(16, 16)]

    def sum(self) -> WeightedSum:
        """The sum as a WeightedSum."""
        return WeightedSum.of(self.coarse.view("<f8"), self.fine.view("<f8"), self.count, self.slots)

    def mean(self) -> Weights:
        """Return w^T, the mean over all slots, as f4."""
        return Weights(values=self.sum().mean_values(), layout=self.layout)


def changed(slots: SlotSum | None, change: Change, layout: bytes) -> SlotSum:
    """Return the slots after a round with at least one answer."""
    after = (slots.sum() if slots else WeightedSum()).minus(change.gone).merge(change.now)
    coarse, fine = after.parts()
    return SlotSum(coarse=_bits(coarse), fine=_bits(fine), count=after.count, slots=after.uploads, layout=layout)


def _bits(values: Doubles) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values, "<f8").view(np.uint8)
