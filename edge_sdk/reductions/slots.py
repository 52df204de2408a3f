"""Slots: the newest upload of every device, those that stay away included, as one running sum (FedKF's technique T1).

The uploads themselves are in the ledger.  A device that answers adds its new weights, and its earlier ones are
subtracted; both are split on the grids of WeightedSum, so that the subtraction is exact to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles
from edge_sdk.protocol.frames.schema import Blob, Count, Integer, Tensor, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions.contribution import Contribution
from edge_sdk.reductions.weighted_sum import WeightedSum

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
