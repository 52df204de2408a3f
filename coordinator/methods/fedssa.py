"""FedSSA (coordinator half): the mean of each class's header rows over its holders, Yi et al. 2024, IJCAI, equation 3.

A class that nobody brings in a round keeps its row, on which the paper is silent.  Round 0 begins with a random header,
the same for all devices; where no feature width is agreed on there is none.

`cached`: the mean is over the slots, the newest rows of every device that ever answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from coordinator.aggregate import Bag, InBag
from coordinator.class_rows import MOST, carried_over, mean_over_holders
from coordinator.methods.base import At
from coordinator.slots import Change, SlotSum, changed
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedssa import FEDSSA
from edge_sdk.protocol.knowledge import ClassRows, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, wire

_HEADER_STREAM = 0x68656164
"""Keeps this draw apart from those of devices, whose seeds end in their number."""
_LAYOUT = bytes(16)
"""Of the tables that slots add up: there is only one."""


@wire("fedssa-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedSSACoordinatorState:
    """The global header."""

    header: ClassRows | None  # (m, d + 1)
    rounds: Count
    """After these nobody needs it: a device's result is its model as it was trained last."""
    slots: SlotSum | None = None
    """Of `cached`: for each class the sum of its rows, weighted, and of their weights."""


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
        ups = [cast("ClassRows", up.knowledge["header"]) for up in aggregate if up.knowledge]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no header rows arrived; wait for devices, or lower the quorum")
        if not self.contract.read(spec.params).cached:
            return replace(state, header=carried_over(state.header, mean_over_holders(ups)))
        slots = slots_after(state.slots, aggregate, spec.classes)
        return replace(state, header=carried_over(state.header, mean_of_slots(slots, spec.classes)), slots=slots)


def slots_after(slots: SlotSum | None, round_: Bag, classes: int) -> SlotSum:
    """The slots with the rows that came, without those that they take the place of or that expired."""
    change = Change()
    for up in round_:
        knowledge, before = (_table(each, classes) for each in (up.knowledge, up.before))
        change = change.add(replace(up, knowledge=knowledge, before=before))
    return changed(slots, change, _LAYOUT)


def _table(known: Mapping[str, Payload], classes: int) -> Mapping[str, Payload]:
    """Rows of all classes, each times its weight and with it as one more column, flat: what SlotSum adds up."""
    if not known:
        return {}
    header = cast("ClassRows", known["header"])
    table = np.zeros((classes, header.rows.shape[1] + 1))  # (k, d + 2)
    table[header.classes, :-1] = header.rows.astype(np.float64) * header.counts[:, None]
    table[header.classes, -1] = header.counts
    return {"weights": Weights(values=table.reshape(-1), layout=_LAYOUT)}  # f8: products are exact


def mean_of_slots(slots: SlotSum, classes: int) -> ClassRows:
    """The mean row of each class that a slot has."""
    coarse, fine = slots.sum().parts()
    table = (coarse + fine).reshape(classes, -1)  # (k, d + 2)
    held = np.flatnonzero(table[:, -1])
    weights = table[held, -1:]  # (m, 1)
    counts = np.minimum(weights[:, 0], MOST).astype(np.int32)
    rows = (table[held, :-1] / weights).astype(np.float32)
    return ClassRows(classes=held.astype(np.int32), rows=rows, counts=counts)


def _random_header(spec: FederationSpec) -> ClassRows:
    """U(-1/sqrt d, 1/sqrt d) for weights and bias, as the devices' own last layers start."""
    rng = np.random.default_rng([spec.seed, _HEADER_STREAM])
    bound = spec.feature_dim**-0.5
    rows = rng.uniform(-bound, bound, (spec.classes, spec.feature_dim + 1)).astype(np.float32)
    classes = np.arange(spec.classes, dtype=np.int32)
    return ClassRows(classes=classes, rows=rows, counts=np.ones(spec.classes, np.int32))


METHOD = FedSSACoordinator()
