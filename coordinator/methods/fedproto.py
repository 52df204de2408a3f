"""FedProto (coordinator half): the mean of each class's prototypes over its holders, Tan et al. 2022, AAAI, equation 6.

Equation 6 divides by the holders once more than a mean does; this is the mean.  A class that nobody brings in a round
keeps its prototype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from coordinator.aggregate import Bag, InBag
from coordinator.class_rows import carried_over, mean_over_holders
from coordinator.methods.base import At
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedproto import FEDPROTO
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("fedproto-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedProtoCoordinatorState:
    """The prototypes, of every class that was ever brought."""

    prototypes: ClassRows | None = None


class FedProtoCoordinator(InBag):
    """Averages prototypes by class; devices say with their counts how much theirs weigh."""

    contract = FEDPROTO

    def init(self, spec: FederationSpec) -> FedProtoCoordinatorState:
        """No prototypes yet: the first round trains without."""
        return FedProtoCoordinatorState()

    def common(self, state: FedProtoCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The prototypes of all classes; each device uses those of its own."""
        return {} if state.prototypes is None else {"prototypes": state.prototypes}

    def personal(self, state: FedProtoCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedProtoCoordinatorState, at: At, aggregate: Bag
    ) -> FedProtoCoordinatorState:
        """Average over the holders of each class."""
        ups = [cast("ClassRows", up.knowledge["prototypes"]) for up in aggregate]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no prototypes arrived; wait for devices, or lower the quorum")
        return FedProtoCoordinatorState(carried_over(state.prototypes, mean_over_holders(ups)))


METHOD = FedProtoCoordinator()
