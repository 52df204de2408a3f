"""What is summed: one device's upload; and what a sum of them is."""

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

    Where the method keeps slots: also the upload that is in the device's slot until then; and without knowledge one
    whose slot is given up for its age.
    """

    number: int
    samples: int
    knowledge: Mapping[str, Payload]
    before: Mapping[str, Payload] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether the device took part in the exchange; else only its slot is given up."""
        return bool(self.knowledge) or not self.before


A = TypeVar("A", bound="Aggregate")


class Aggregate(Protocol):
    """A sum of uploads that stays a value.

    Laws: merge(zero, a) = a;  merge(a, b) = merge(b, a);  merge(a, merge(b, c)) = merge(merge(a, b), c); and any order
    and split of the same uploads leads a method to the same bits.  `zero` is the aggregate made without arguments.
    """

    @property
    def answered(self) -> int:
        """Devices that took part in the exchange."""

    def add(self, contribution: Contribution) -> Self:
        """With one more upload; this aggregate stays as it was."""

    def merge(self, other: Self) -> Self:
        """Both together, of different devices."""
