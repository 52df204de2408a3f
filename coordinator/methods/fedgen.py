"""FedGen (coordinator half): the mean of weights, and a generator that learns from the mean of last layers.

Zhu, Hong and Zhou 2021, ICML, arXiv:2105.10056, equation 4 and Algorithm 1.  Devices get what the generator makes of
the labels, not the generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import numpy as np

from coordinator.aggregate import Bag
from coordinator.class_rows import mean_over_holders
from coordinator.methods.base import At
from coordinator.methods.fedavg import next_weights
from coordinator.mixed_sum import InMixedSum, MixedSum
from edge_sdk.errors import MissingExtra
from edge_sdk.objectives import Floats, Ints
from edge_sdk.protocol.contracts.fedgen import FEDGEN, FedGenParams
from edge_sdk.protocol.knowledge import ClassRows, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Vector, wire

_STREAM = 0x67656E
"""Keeps these draws apart from those of devices, whose seeds end in their number."""


@wire("fedgen-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedGenCoordinatorState:
    """w^t, the generator, flat, and what it made for the next round."""

    weights: Weights | None = None
    generator: tuple[Vector, ...] = ()  # weights and biases in turn, flattened
    generated: ClassRows | None = None  # (m, n d)
    rounds: Count
    """After these nobody trains."""


class FedGenCoordinator(InMixedSum):
    """Averages weights, trains the generator, samples it."""

    contract = FEDGEN

    def init(self, spec: FederationSpec) -> FedGenCoordinatorState:
        """A seeded generator."""
        module = _module()
        shapes = _shapes(spec, self.contract.read(spec.params))
        layers = module.initial_weights(shapes, np.random.default_rng([spec.seed, _STREAM]))
        return FedGenCoordinatorState(generator=tuple(layer.reshape(-1) for layer in layers), rounds=spec.rounds)

    def common(self, state: FedGenCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Both, from the second round on; at the end the mean alone."""
        generated = None if at.round == state.rounds else state.generated
        both = {"weights": state.weights, "generated": generated}
        return {role: payload for role, payload in both.items() if payload is not None}

    def personal(self, state: FedGenCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedGenCoordinatorState, at: At, aggregate: MixedSum
    ) -> FedGenCoordinatorState:
        """Average; let the generator learn what all heads call each label; have it make some of each that is held."""
        params: FedGenParams = self.contract.read(spec.params)
        weights = next_weights(at, aggregate.weights, params.start, state.weights)
        only_first = state.weights is None and params.start == "first"  # whose model it is that all go on from
        header, counts = _heads(aggregate.rest, spec, only_first=only_first)
        module, rng = _module(), np.random.default_rng([spec.seed, _STREAM, at.round])
        shapes = _shapes(spec, params)
        layers = tuple(flat.reshape(shape) for flat, shape in zip(state.generator, shapes, strict=True))
        how = module.Training(
            steps=params.generator_steps,
            batch=params.generator_batch,
            rate=params.generator_rate,
            diversity=params.diversity,
        )
        layers = module.trained(layers, header, counts / counts.sum(), how, rng)
        held = np.flatnonzero(counts)  # (m,)
        features = module.made(layers, held, params.samples_per_class, spec.classes, rng)  # (m, n, d)
        generated = ClassRows(
            classes=held.astype(np.int32), rows=features.reshape(len(held), -1), counts=np.ones(len(held), np.int32)
        )
        flat_layers = tuple(layer.reshape(-1) for layer in layers)
        return FedGenCoordinatorState(weights=weights, generator=flat_layers, generated=generated, rounds=state.rounds)


def _heads(rest: Bag, spec: FederationSpec, *, only_first: bool) -> tuple[Floats, Ints]:
    """The mean of last layers (k, d + 1), each device counting once, and the samples of each class (k,)."""
    ups = list(rest)  # in number order
    counts = np.zeros(spec.classes, np.int64)
    for up in ups:
        held = cast("ClassRows", up.knowledge["header"])
        counts[held.classes] += held.counts
    parts = [cast("ClassRows", part) for up in ups[: 1 if only_first else None] for part in up.knowledge.values()]
    once = [ClassRows(classes=each.classes, rows=each.rows, counts=np.ones_like(each.counts)) for each in parts]
    mean, header = mean_over_holders(once), np.zeros((spec.classes, spec.feature_dim + 1), np.float32)
    header[mean.classes] = mean.rows
    return header, counts


def _shapes(spec: FederationSpec, params: FedGenParams) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = _module().layer_shapes(
        params.noise_dim, spec.classes, params.hidden, spec.feature_dim
    )
    return shapes


def _module() -> ModuleType:
    try:
        from coordinator.methods import torch_generator  # noqa: PLC0415  # torch only where a method trains
    except ImportError:
        raise MissingExtra("torch", "coordinator", "FedGen's generator") from None
    return torch_generator


METHOD = FedGenCoordinator()
