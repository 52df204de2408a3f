"""FedSSA (coordinator half): the mean of each class's header rows over its holders, Yi et al. 2024, IJCAI, equation 3.

A class that nobody brings in a round keeps its row, on which the paper is silent.  Round 0 begins with a random header,
the same for all devices; where no feature width is agreed on there is none.

`cached`: the mean is over the last rows of every device that ever answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from coordinator.aggregate import Bag, InBag
from coordinator.class_rows import carried_over, mean_over_holders
from coordinator.methods.base import At
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedssa import FEDSSA
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire

_HEADER_STREAM = 0x68656164
"""Keeps this draw apart from those of devices, whose seeds end in their number."""


@wire("fedssa-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedSSACoordinatorState:
    """The global header."""

    header: ClassRows | None  # (m, d + 1)
    rounds: Count
    """After these nobody needs it: a device's result is its model as it was trained last."""
    cache: Mapping[str, ClassRows] = field(default_factory=dict)
    """The last rows of each device, by its number; empty unless `cached`.  Whole, for a sum could not let go of a
    device's former rows without rounding."""


class FedSSACoordinator(InBag):
    """Averages header rows by class; devices say with their counts how much theirs weigh."""

    contract = FEDSSA

    def init(self, spec: FederationSpec) -> FedSSACoordinatorState:
        """A random header of all classes."""
        header = _random_header(spec) if spec.feature_dim else None
        return FedSSACoordinatorState(header=header, rounds=spec.rounds)

    def common(self, state: FedSSACoordinatorState, at: At) -> Mapping[str, Payload]:
        """The rows of all classes, as Algorithm 1 broadcasts them; each device uses those of its own."""
        return {} if state.header is None or at.round == state.rounds else {"header": state.header}

    def personal(self, state: FedSSACoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedSSACoordinatorState, at: At, aggregate: Bag
    ) -> FedSSACoordinatorState:
        """Average over the holders of each class."""
        ups = {str(up.number): cast("ClassRows", up.knowledge["header"]) for up in aggregate}
        if not ups:
            raise EmptyRound(f"round {at.round}: no header rows arrived; wait for devices, or lower the quorum")
        if self.contract.read(spec.params).cached:
            ups = {**state.cache, **ups}
            state = replace(state, cache=ups)
        in_order = [ups[number] for number in sorted(ups, key=int)]
        return replace(state, header=carried_over(state.header, mean_over_holders(in_order)))


def _random_header(spec: FederationSpec) -> ClassRows:
    """U(-1/sqrt d, 1/sqrt d) for weights and bias, as the devices' own last layers start."""
    rng = np.random.default_rng([spec.seed, _HEADER_STREAM])
    bound = spec.feature_dim**-0.5
    rows = rng.uniform(-bound, bound, (spec.classes, spec.feature_dim + 1)).astype(np.float32)
    classes = np.arange(spec.classes, dtype=np.int32)
    return ClassRows(classes=classes, rows=rows, counts=np.ones(spec.classes, np.int32))


METHOD = FedSSACoordinator()
