"""FedGKD (coordinator half): the mean of weights, and the plain mean of the last M of them as teacher.

Yao et al. 2024, arXiv:2107.00051, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.aggregate import mean_in_order
from coordinator.methods.base import At
from coordinator.methods.fedavg import next_weights
from coordinator.slots import Change, InChange, SlotSum, next_slots, over_slots
from edge_sdk.protocol.contracts.fedgkd import FEDGKD
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire


@wire("fedgkd-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedGKDCoordinatorState:
    """The last M means, the newest one last."""

    models: tuple[Weights, ...] = ()
    rounds: Count
    slots: SlotSum | None = None
    """Where the result is the mean over all slots."""


class FedGKDCoordinator(InChange):
    """FedAvg with a memory."""

    contract = FEDGKD

    def init(self, spec: FederationSpec) -> FedGKDCoordinatorState:
        """No weights yet: devices begin with their own."""
        return FedGKDCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedGKDCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The newest mean and the teacher; one where they are the same; at the end the result alone."""
        if not state.models:
            return {}
        if at.round == state.rounds:
            return {"weights": over_slots(state.slots, state.models[-1])}
        newest = {"weights": state.models[-1]}
        if len(state.models) == 1:
            return newest
        teacher = mean_in_order(each.values for each in state.models)
        return {**newest, "teacher": Weights(values=teacher, layout=state.models[-1].layout)}

    def personal(self, state: FedGKDCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedGKDCoordinatorState, at: At, aggregate: Change
    ) -> FedGKDCoordinatorState:
        """Divide, and let go of the oldest mean."""
        params = self.contract.read(spec.params)
        before = state.models[-1] if state.models else None
        newest = next_weights(at, aggregate.now, params.start, before)
        slots = next_slots(self.contract.caching(params), at, aggregate, newest.layout, state.slots)
        return FedGKDCoordinatorState(
            models=(*state.models, newest)[-params.buffer :], rounds=state.rounds, slots=slots
        )


METHOD = FedGKDCoordinator()
