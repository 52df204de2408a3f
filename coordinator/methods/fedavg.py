"""FedAvg (coordinator half): the mean of weights over the devices that answered, McMahan et al. 2017, Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coordinator.methods.base import At
from coordinator.slots import Change, InChange, SlotSum, next_slots, over_slots
from coordinator.weighted_sum import WeightedSum
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedavg import FEDAVG
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire
from edge_sdk.protocol.wires import Contract


@wire("fedavg-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgCoordinatorState:
    """w^t; none before the first round, for the coordinator has no model."""

    weights: Weights | None = None
    rounds: Count
    """After these it goes out only where the method's closing Assign brings it."""
    slots: SlotSum | None = None
    """Where the result is the mean over all slots."""


class FedAvgCoordinator(InChange):
    """Averages weights; serves every method that differs from FedAvg on the device only."""

    def __init__(self, contract: Contract[Any]) -> None:
        self.contract = contract
        self._own = not contract.closing(contract.params()).down
        """Whether a device's result is a model of its own, which the last mean would only overwrite."""

    def init(self, spec: FederationSpec) -> FedAvgCoordinatorState:
        """No weights yet: devices begin with their own."""
        return FedAvgCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedAvgCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The mean, from the second round on; at the end the one over slots, where there are any."""
        closing = at.round == state.rounds
        if state.weights is None or (closing and self._own):
            return {}
        return {"weights": over_slots(state.slots, state.weights) if closing else state.weights}

    def personal(self, state: FedAvgCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedAvgCoordinatorState, at: At, aggregate: Change
    ) -> FedAvgCoordinatorState:
        """Divide; in the first round, see to a common start."""
        params = self.contract.read(spec.params)
        weights = next_weights(at, aggregate.now, params.start, state.weights)
        slots = next_slots(self.contract.caching(params), at, aggregate, weights.layout, state.slots)
        return replace(state, weights=weights, slots=slots)


def next_weights(at: At, aggregate: WeightedSum, start: str, before: Weights | None) -> Weights:
    """w^{t+1}.  Raises EmptyRound where nothing arrived."""
    if not aggregate.uploads:
        raise EmptyRound(f"round {at.round}: no weights arrived; wait for devices, or lower the quorum")
    return aggregate.start(start) if before is None else aggregate.mean()


METHOD = FedAvgCoordinator(FEDAVG)
