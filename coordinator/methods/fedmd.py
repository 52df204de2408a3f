"""FedMD (coordinator half): the mean of the logits, Li and Wang 2019, arXiv:1910.03581.  Keeps the last mean alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from coordinator.aggregate import Bag, InBag, mean_in_order
from coordinator.methods.base import At
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedmd import FEDMD
from edge_sdk.protocol.knowledge import Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Packed, wire

MAX_DEVICES = 10**6
"""As many as a federation may have (coordinator/config.py)."""


@wire("fedmd-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedMDCoordinatorState:
    """The mean of the last round, and whose logits are in it."""

    mean: PublicLogits | None = None
    numbers: Annotated[tuple[int, ...], Packed(MAX_DEVICES)] = ()


class FedMDCoordinator(InBag):
    """Averages logits over contributors; devices take themselves out of a mean that they are in."""

    contract = FEDMD

    def init(self, spec: FederationSpec) -> FedMDCoordinatorState:
        """No mean yet."""
        return FedMDCoordinatorState()

    def common(self, state: FedMDCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The mean of the last round, with the number of contributors."""
        return {} if state.mean is None else {"mean": state.mean}

    def personal(self, state: FedMDCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """The same mean as that of the others, for a device that has no part in it."""
        return {} if state.mean is None or number in state.numbers else {"others": state.mean}

    def finish(
        self, spec: FederationSpec, state: FedMDCoordinatorState, at: At, aggregate: Bag
    ) -> FedMDCoordinatorState:
        """Average the logits (not the probabilities) over contributors."""
        ups = [cast("PublicLogits", up.knowledge["logits"]) for up in aggregate]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no logits arrived; see why the devices are silent")
        mean = mean_in_order(up.values for up in ups)
        numbers = tuple(up.number for up in aggregate)
        return FedMDCoordinatorState(PublicLogits(values=mean, batch=ups[0].batch, contributors=len(ups)), numbers)


METHOD = FedMDCoordinator()
