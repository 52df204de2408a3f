"""FD (coordinator half): for each device the mean predictions of the other holders of its classes.

Jeong et al. 2018, arXiv:1811.11479, equation 4.  The paper divides by M - 1 for M devices that all hold all classes;
here M is the holders of the class that answered, and where there is no other the class is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, cast

from coordinator.aggregate import Bag, InBag
from coordinator.class_rows import mean_over_holders, mean_over_others
from coordinator.methods.base import At
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fd import FD
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Packed, wire


@wire("fd-coordinator-state")
@dataclass(frozen=True, slots=True)
class FDCoordinatorState:
    """The targets that wait to go out."""

    targets: Mapping[str, ClassRows] = field(default_factory=dict)
    """By device number, for those that answered and have somebody to learn from."""
    everybody: ClassRows | None = None
    """For a device that did not: nothing of it is in the mean."""
    rounds: Count = 0
    answered: Annotated[tuple[int, ...], Packed(2**20)] = ()


class FDCoordinator(InBag):
    """Leaves each device out of its own target."""

    contract = FD

    def init(self, spec: FederationSpec) -> FDCoordinatorState:
        """No predictions yet: the first round trains without."""
        return FDCoordinatorState(rounds=spec.rounds)

    def common(self, state: FDCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Nothing: the target leaves each device out, so it differs."""
        return {}

    def personal(self, state: FDCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """The mean of the others; the closing Assign has no use for it."""
        if at.round == state.rounds:
            return {}
        rows = state.targets.get(str(number)) if number in state.answered else state.everybody
        return {} if rows is None else {"targets": rows}

    def finish(self, spec: FederationSpec, state: FDCoordinatorState, at: At, aggregate: Bag) -> FDCoordinatorState:
        """The mean over holders, once for everybody and once without each of them."""
        ups = {up.number: cast("ClassRows", up.knowledge["predictions"]) for up in aggregate}  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no predictions arrived; wait for devices, or lower the quorum")
        others = dict(zip(ups, mean_over_others(list(ups.values())), strict=True))
        return FDCoordinatorState(
            targets={str(number): rows for number, rows in others.items() if rows is not None},
            everybody=mean_over_holders(list(ups.values())),
            answered=tuple(ups),
            rounds=state.rounds,
        )


METHOD = FDCoordinator()
