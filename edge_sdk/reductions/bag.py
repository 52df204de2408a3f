"""One device's upload, and a bag of uploads for methods that need all of an exchange at once.

Float addition is not associative, so a running float sum would make results depend on the order of arrival.  A `Bag`
keeps the uploads by device number, so that a method sums them in number order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.knowledge import Payload
from edge_sdk.reductions.append_only import AppendOnlyMap

if TYPE_CHECKING:  # of the tools, not of a base install
    from typing_extensions import Self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution:
    """One device's accepted upload.

    If the method keeps slots, it also has the device's earlier upload, which the new one replaces.  A contribution
    without knowledge has only an earlier upload, whose slot expired.
    """

    number: int
    samples: int
    knowledge: Mapping[str, Payload]
    before: Mapping[str, Payload] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether the device took part in the exchange; if not, only its slot expired."""
        return bool(self.knowledge) or not self.before


A = TypeVar("A", bound="Aggregate")


class Aggregate(Protocol):
    """A sum of uploads that stays a value.

    Laws: merge(zero, a) = a;  merge(a, b) = merge(b, a);  merge(a, merge(b, c)) = merge(merge(a, b), c); and any order
    and split of the same uploads leads a method to the same bits.  `zero` is the aggregate made without arguments.
    """

    @property
    def answered(self) -> int:
        """The number of devices that took part in the exchange."""

    def add(self, contribution: Contribution) -> Self:
        """Return the aggregate with one more upload; this aggregate stays unchanged."""

    def merge(self, other: Self) -> Self:
        """Merge two aggregates of different devices."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Bag:
    """Uploads by device number."""

    uploads: AppendOnlyMap[int, Contribution] = field(default_factory=AppendOnlyMap)

    def add(self, contribution: Contribution) -> Bag:
        """Return the bag with one more device; a device that is in it keeps its first durable upload."""
        return Bag(self.uploads.added(contribution.number, contribution))

    def merge(self, other: Bag) -> Bag:
        """Return the union.  Two different uploads of one device cannot meet here: the ledger accepts only one."""
        return Bag(AppendOnlyMap({**other.uploads, **self.uploads}))

    def __iter__(self) -> Iterator[Contribution]:
        """Iterate in number order, not in the order of arrival."""
        return (self.uploads[number] for number in sorted(self.uploads))

    def __len__(self) -> int:
        return len(self.uploads)

    @property
    def answered(self) -> int:
        """The number of devices that took part in the exchange."""
        return sum(up.answered for up in self.uploads.values())

    def payloads(self, kind: type[T], role: str) -> dict[int, T]:
        """Return the payloads of `kind` received in a role, by device number, in number order."""
        found = ((up.number, up.knowledge.get(role)) for up in self)
        return {number: payload for number, payload in found if isinstance(payload, kind)}


def mean_in_order(arrays: Iterable[NDArray[np.floating]], weights: Sequence[int] = ()) -> NDArray[np.float32]:
    """Return the mean of equal-shaped arrays, summed in f8 in the order given, as f4.

    weights: of each array, in the same order; without them all count the same.
    """
    total: NDArray[np.float64] | None = None
    count = 0
    for array, weight in zip(arrays, weights or repeat(1), strict=False):
        weighted = array.astype(np.float64) * weight if weight != 1 else array.astype(np.float64)
        total = weighted if total is None else total + weighted
        count += weight
    if total is None:
        raise ValueError("no arrays")
    return (total / count).astype(np.float32)
