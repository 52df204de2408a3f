"""FedKF (coordinator half): the mean over those who answered, and the mean over all slots.

Zhou et al. 2023, arXiv:2207.11447, Algorithm 1, s5 to s7.  Devices go on from the former (ACA); the latter (OCA) is
their teacher, and the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.methods.base import At
from coordinator.methods.fedavg import next_weights
from coordinator.slots import Change, InChange, SlotSum, next_slots, over_slots
from edge_sdk.protocol.contracts.fedkf import FEDKF
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire


@wire("fedkf-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedKFCoordinatorState:
    """w^S and the slots, whose mean is w^T; none before the first round, for the coordinator has no model."""

    student: Weights | None = None
    rounds: Count
    slots: SlotSum | None = None


class FedKFCoordinator(InChange):
    """Averages twice."""

    contract = FEDKF

    def init(self, spec: FederationSpec) -> FedKFCoordinatorState:
        """No weights yet: devices begin with their own."""
        return FedKFCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedKFCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Both means, or one where they are the same; at the end the one over all slots."""
        if state.student is None:
            return {}
        teacher = over_slots(state.slots, state.student)
        if at.round == state.rounds or np.array_equal(state.student.values, teacher.values):
            return {"weights": teacher}
        return {"weights": state.student, "teacher": teacher}

    def personal(self, state: FedKFCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedKFCoordinatorState, at: At, aggregate: Change
    ) -> FedKFCoordinatorState:
        """Divide both sums; in the first round, see to a common start."""
        params = self.contract.read(spec.params)
        student = next_weights(at, aggregate.now, params.start, state.student)
        slots = next_slots(self.contract.caching(params), at, aggregate, student.layout, state.slots)
        return FedKFCoordinatorState(student=student, rounds=state.rounds, slots=slots)


METHOD = FedKFCoordinator()
