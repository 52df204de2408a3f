"""One device's upload, and the protocol of its aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from edge_sdk.protocol.knowledge import Payload

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
