"""LG-FedAvg (coordinator half): the mean of last layers over the devices that answered, Liang et al. 2020."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from coordinator.aggregate import Bag, InBag
from coordinator.class_rows import MOST, mean_over_holders
from coordinator.methods.base import At, Contribution
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.lg_fedavg import LG_FEDAVG
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire
from edge_sdk.protocol.wires import Contract


@wire("lg-fedavg-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class LGFedAvgCoordinatorState:
    """The mean of the last layers; none before the first round: devices begin with their own."""

    header: ClassRows | None = None  # (k, d + 1)
    rounds: Count
    """After these nobody needs it: a device's result is its model as it was trained last."""


class LGFedAvgCoordinator(InBag):
    """Averages whole last layers."""

    def __init__(self, contract: Contract[Any] = LG_FEDAVG) -> None:
        """Of LG-FedAvg, or of a method that differs from it on the device only."""
        self.contract = contract

    def init(self, spec: FederationSpec) -> LGFedAvgCoordinatorState:
        """None yet."""
        return LGFedAvgCoordinatorState(rounds=spec.rounds)

    def common(self, state: LGFedAvgCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The mean, from the second round on."""
        return {} if state.header is None or at.round == state.rounds else {"header": state.header}

    def personal(self, state: LGFedAvgCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: LGFedAvgCoordinatorState, at: At, aggregate: Bag
    ) -> LGFedAvgCoordinatorState:
        """Average, row by row."""
        by_samples = self.contract.read(spec.params).weighting == "samples"
        ups = [_weighted(up, by_samples=by_samples) for up in aggregate]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no last layers arrived; wait for devices, or lower the quorum")
        return replace(state, header=mean_over_holders(ups))


def _weighted(up: Contribution, *, by_samples: bool) -> ClassRows:
    """Every row weighs what the device does: its samples of all classes together, for it is one layer."""
    rows = cast("ClassRows", up.knowledge["header"])
    count = min(up.samples, MOST) if by_samples else 1
    return replace(rows, counts=np.full(len(rows.classes), count, np.int32))


METHOD = LGFedAvgCoordinator()
