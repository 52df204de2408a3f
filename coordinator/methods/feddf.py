"""FedDF (coordinator half): each architecture's mean, trained towards the mean logits of all uploaded models.

Lin et al. 2020, NeurIPS, Algorithm 1 and 3: min KL( softmax(mean_k f_k(x)) || softmax(f(x)) ) over public samples x,
where k runs over the models of all architectures, and f starts from the mean of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

import numpy as np

from coordinator.aggregate import Bag, InBag, mean_in_order
from coordinator.equipment import Equipment
from coordinator.methods.base import At
from coordinator.weighted_sum import WeightedSum
from edge_sdk.errors import EmptyRound, UsageError
from edge_sdk.models.base import Batches, Model
from edge_sdk.objectives import Distill, Floats, Optim
from edge_sdk.protocol.contracts.feddf import FEDDF, FedDFParams
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Items, wire

_STREAM = 0x46444446
"""Keeps the draw of batches apart from those of devices."""


@wire("feddf-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedDFCoordinatorState:
    """One model of each architecture, by layout, and which devices have which."""

    models: Annotated[Mapping[str, Weights], Items()] = field(default_factory=dict)
    members: Annotated[Mapping[str, str], Items()] = field(default_factory=dict)
    """Layout by device number."""


class FedDFCoordinator(InBag):
    """Keeps all uploads of a round: each is a teacher."""

    contract = FEDDF

    def __init__(self, equipment: Equipment | None = None) -> None:
        self._equipment = equipment

    def with_equipment(self, equipment: Equipment) -> FedDFCoordinator:
        """See Equipped."""
        return FedDFCoordinator(equipment)

    def init(self, spec: FederationSpec) -> FedDFCoordinatorState:
        """No models yet: devices begin with their own."""
        return FedDFCoordinatorState()

    def common(self, state: FedDFCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Nothing: it depends on the architecture."""
        return {}

    def personal(self, state: FedDFCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """The model of the device's architecture."""
        layout = state.members.get(str(number))
        return {} if layout is None else {"weights": state.models[layout]}

    def finish(
        self, spec: FederationSpec, state: FedDFCoordinatorState, at: At, aggregate: Bag
    ) -> FedDFCoordinatorState:
        """Average, then distil; an architecture that nobody brings is distilled from where it was.

        Raises UsageError where an architecture's net is not at hand.
        """
        ups = {up.number: cast("Weights", up.knowledge["weights"]) for up in aggregate}  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no weights arrived; wait for devices, or lower the quorum")
        params = self.contract.read(spec.params)
        models = {**state.models, **_means(ups, state, params.start)}
        members = {**state.members, **{str(number): weights.layout.hex() for number, weights in ups.items()}}
        if params.steps:
            models = self._distilled(params, [spec.seed, _STREAM, at.round], models, list(ups.values()))
        return FedDFCoordinatorState(models, members)

    def _distilled(
        self, params: FedDFParams, seed: list[int], models: Mapping[str, Weights], teachers: Sequence[Weights]
    ) -> dict[str, Weights]:
        """Each model after its steps.  All teachers answer once for all public samples."""
        if self._equipment is None:
            raise UsageError("feddf runs the devices' models on the coordinator, and was given none")
        samples = self._equipment.samples.samples
        nets = {layout: _net(self._equipment.by_layout, bytes.fromhex(layout)) for layout in models}
        inputs = {layout: net.spec.preprocess(samples) for layout, net in nets.items()}  # (n, c, h, w)
        target = mean_in_order(_answers(nets[each.layout.hex()], each, inputs[each.layout.hex()]) for each in teachers)
        rng, size = np.random.default_rng(seed), min(params.distill_batch, len(samples))
        steps = np.stack([rng.choice(len(samples), size, replace=False) for _ in range(params.steps)])  # (steps, b)
        learnt = {}
        for layout, model in models.items():
            batches = Batches(inputs=inputs[layout], labels=None, indices=steps, stochastic=False)
            learnt[layout] = _learnt(nets[layout], model, batches, target, params)
        return learnt


def _means(ups: Mapping[int, Weights], state: FedDFCoordinatorState, start: str) -> dict[str, Weights]:
    """The mean of each architecture that was brought; of one that is new, its common start."""
    sums: dict[str, WeightedSum] = {}
    for number, weights in ups.items():
        layout = weights.layout.hex()
        sums[layout] = sums.get(layout, WeightedSum()).add(number, weights)
    return {layout: total.mean() if layout in state.models else total.start(start) for layout, total in sums.items()}


def _net(nets: Mapping[bytes, Model], layout: bytes) -> Model:
    if layout not in nets:
        known = ", ".join(net.spec.name for net in nets.values()) or "none"
        raise UsageError(
            f"federation.nets: no net has the layout {layout.hex()[:8]} that devices shared (known: {known}); "
            "the factory must return one model of each architecture"
        )
    return nets[layout]


def _answers(net: Model, weights: Weights, inputs: Floats) -> Floats:
    """The logits of a model on all public samples: (n, k)."""
    net.set_weights(weights.values.astype(np.float32))
    return net.logits(inputs)


def _learnt(net: Model, weights: Weights, batches: Batches, target: Floats, params: FedDFParams) -> Weights:
    """A model after its steps towards the target (n, k), with Adam's moments from nothing."""
    net.set_weights(weights.values.astype(np.float32))
    objective = (Distill(logits=target[batches.indices], temperature=params.temperature),)
    net.fit(batches, objective, Optim(kind="adam", learning_rate=params.distill_rate))
    return replace(weights, values=net.weights())


METHOD = FedDFCoordinator()
