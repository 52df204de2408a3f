"""What a coordinator half is: a reduction whose partial aggregates merge exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract

S = TypeVar("S")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class At:
    """A place in a run."""

    round: int
    exchange: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution:
    """One device's accepted upload.

    Where the method keeps slots (Contract.caching): also the upload that is in the device's slot until then; and
    without knowledge one whose slot is given up for its age.
    """

    number: int
    samples: int
    knowledge: Mapping[str, Payload]
    before: Mapping[str, Payload] = field(default_factory=dict)


class CoordinatorMethod(Protocol[S, A]):
    """A method on the coordinator.

    Laws, which a property test holds every method to: `merge` is associative and commutative, `zero` is its identity,
    and any order and split of the same uploads leads `finish` to the same bits.
    """

    @property
    def contract(self) -> Contract[Any]:
        """What both halves agree on."""

    def init(self, spec: FederationSpec) -> S:
        """The state before the first round: a @wire dataclass."""

    def common(self, state: S, at: At) -> Mapping[str, Payload]:
        """Knowledge that goes to everybody in this exchange."""

    def personal(self, state: S, at: At, number: int) -> Mapping[str, Payload]:
        """Knowledge for one device in this exchange."""

    def zero(self) -> A:
        """The empty aggregate."""

    def add(self, aggregate: A, contribution: Contribution) -> A:
        """The aggregate with one more upload; the old one stays as it was."""

    def merge(self, a: A, b: A) -> A:
        """Two partial aggregates of different devices as one."""

    def finish(self, spec: FederationSpec, state: S, at: At, aggregate: A) -> S:
        """The state after this exchange; may train.  Raises EmptyRound rather than guess."""
