"""FedKF (coordinator half): the mean over those who answered, and the mean over all slots.

Zhou et al. 2023, arXiv:2207.11447, Algorithm 1, s5 to s7.  Devices go on from the former (ACA); the latter (OCA) is
their teacher, and the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.methods.base import At, Contribution
from coordinator.methods.fedavg import next_weights
from coordinator.slots import Change, SlotSum, over_slots
from edge_sdk.protocol.contracts.fedkf import FEDKF
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire


@wire("fedkf-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedKFCoordinatorState:
    """w^S, w^T and the slots; none before the first round, for the coordinator has no model."""

    student: Weights | None = None
    teacher: Weights | None = None
    rounds: Count
    slots: SlotSum | None = None


class FedKFCoordinator:
    """Averages twice."""

    contract = FEDKF

    def init(self, spec: FederationSpec) -> FedKFCoordinatorState:
        """No weights yet: devices begin with their own."""
        return FedKFCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedKFCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Both means, or one where they are the same; at the end the one over all slots."""
        if state.student is None or state.teacher is None:
            return {}
        if at.round == state.rounds:
            return {"weights": state.teacher}
        if np.array_equal(state.student.values, state.teacher.values):
            return {"weights": state.student}
        return {"weights": state.student, "teacher": state.teacher}

    def personal(self, state: FedKFCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def zero(self) -> Change:
        """No uploads."""
        return Change()

    def add(self, aggregate: Change, contribution: Contribution) -> Change:
        """One more."""
        return aggregate.add(contribution)

    def merge(self, a: Change, b: Change) -> Change:
        """Both together."""
        return a.merge(b)

    def finish(
        self, spec: FederationSpec, state: FedKFCoordinatorState, at: At, aggregate: Change
    ) -> FedKFCoordinatorState:
        """Divide both sums; in the first round, see to a common start."""
        params = self.contract.read(spec.params)
        student = next_weights(at, aggregate.now, params.start, state.student)
        teacher, slots = over_slots(self.contract.caching(params), at, aggregate, student, state.slots)
        return FedKFCoordinatorState(student=student, teacher=teacher, rounds=state.rounds, slots=slots)


METHOD = FedKFCoordinator()
