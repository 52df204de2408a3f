"""Aggregates that merge exactly.

Float addition is not associative, so a running float sum would make results depend on the order of arrival.  `Bag`
keeps the uploads apart, by device number, and lets `finish` sum them in number order.

Laws: merge(zero, a) = a;  merge(a, b) = merge(b, a);  merge(a, merge(b, c)) = merge(merge(a, b), c).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.grown import GrownMap
from coordinator.methods.base import Contribution


@dataclass(frozen=True, slots=True, eq=False)
class Bag:
    """Uploads by device number."""

    uploads: GrownMap[int, Contribution] = field(default_factory=GrownMap)

    def add(self, contribution: Contribution) -> Bag:
        """With one more device; one that is in already keeps its first upload: the first durable one wins."""
        return Bag(self.uploads.added(contribution.number, contribution))

    def merge(self, other: Bag) -> Bag:
        """The union.  Two different uploads of one device cannot meet here: the ledger lets only one through."""
        return Bag(GrownMap({**other.uploads, **self.uploads}))

    def __iter__(self) -> Iterator[Contribution]:
        """In number order, whatever the order of arrival."""
        return (self.uploads[number] for number in sorted(self.uploads))

    def __len__(self) -> int:
        return len(self.uploads)


def mean_in_order(arrays: Iterable[NDArray[np.floating]]) -> NDArray[np.float32]:
    """The mean of equal-shaped arrays, summed in f8 in the order given, as f4."""
    total: NDArray[np.float64] | None = None
    count = 0
    for array in arrays:
        total = array.astype(np.float64) if total is None else total + array
        count += 1
    if total is None:
        raise ValueError("no arrays")
    return (total / count).astype(np.float32)


class InBag:
    """The reduction of a method that needs all uploads of an exchange at once: they are kept as they came."""

    def zero(self) -> Bag:
        """No uploads."""
        return Bag()

    def add(self, aggregate: Bag, contribution: Contribution) -> Bag:
        """One more."""
        return aggregate.add(contribution)

    def merge(self, a: Bag, b: Bag) -> Bag:
        """The union."""
        return a.merge(b)
