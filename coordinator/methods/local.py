"""Local training alone (coordinator half): counts who answered, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.aggregate import Bag, InBag
from coordinator.methods.base import At
from edge_sdk.protocol.contracts.local import LOCAL
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("local-coordinator-state")
@dataclass(frozen=True, slots=True)
class LocalCoordinatorState:
    """Nothing to remember."""


class LocalCoordinator(InBag):
    """No knowledge either way."""

    contract = LOCAL

    def init(self, spec: FederationSpec) -> LocalCoordinatorState:
        """Nothing to remember."""
        return LocalCoordinatorState()

    def common(self, state: LocalCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Nothing to tell."""
        return {}

    def personal(self, state: LocalCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing to tell."""
        return {}

    def finish(
        self, spec: FederationSpec, state: LocalCoordinatorState, at: At, aggregate: Bag
    ) -> LocalCoordinatorState:
        """Nothing to compute."""
        return state


METHOD = LocalCoordinator()
