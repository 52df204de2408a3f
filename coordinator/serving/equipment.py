"""Nets and public samples for methods that run the devices' models on the coordinator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.loading import error_text, load_function
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.models.base import Batches, Model
from edge_sdk.objectives import Objective, Optim
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.public_set.samples import PublicSet


@dataclass(frozen=True, kw_only=True, eq=False)
class Equipment:
    """Nets and public samples, loaded when a method that runs nets (edge_sdk.methods) first uses them."""

    nets: Callable[[], Iterable[Model]]
    """Returns one model of each architecture; their weights are overwritten."""
    public: Callable[[], PublicSet | None]

    @functools.cached_property
    def by_layout(self) -> dict[bytes, Model]:
        """The nets by the layout of their weights."""
        return {net.spec.layout: net for net in self.nets() if net.spec.layout}

    @property
    def count(self) -> int:
        """The number of public samples."""
        return len(self.samples.samples)

    @functools.cached_property
    def _inputs(self) -> dict[bytes, Floats]:
        """The public samples as preprocessed for each net, (n, c, h, w), by layout; filled on first use."""
        return {}

    def check(self, layouts: Iterable[bytes]) -> None:
        """Raise UsageError unless there is a net of each layout."""
        for layout in layouts:
            if layout not in self.by_layout:
                known = ", ".join(net.spec.name for net in self.by_layout.values()) or "none"
                raise UsageError(
                    f"federation.nets: no net has the layout {layout.hex()[:8]} that devices shared (known: {known}); "
                    "the factory must return one model of each architecture"
                )

    def logits(self, weights: Weights) -> Floats:
        """The logits of the model with these weights for all public samples, (n, k)."""
        net, inputs = self._net(weights)
        return net.logits(inputs)

    def fitted(self, weights: Weights, indices: Ints, objective: Objective, optim: Optim) -> Weights:
        """The weights after a step on each of these mini-batches of public samples, (steps, b)."""
        net, inputs = self._net(weights)
        net.fit(Batches(inputs=inputs, labels=None, indices=indices, stochastic=False), objective, optim)
        return dataclasses.replace(weights, values=net.weights())

    def _net(self, weights: Weights) -> tuple[Model, Floats]:
        """The net of this layout with these weights, and the public samples preprocessed for it."""
        net = self.by_layout[weights.layout]
        if weights.layout not in self._inputs:
            self._inputs[weights.layout] = net.spec.preprocess(self.samples.samples)
        net.set_weights(weights.values.astype(np.float32))
        return net, self._inputs[weights.layout]

    @functools.cached_property
    def samples(self) -> PublicSet:
        """The public set.  Raises UsageError without one."""
        found = self.public()
        if found is None:
            raise UsageError("this method trains on public samples on the coordinator: give [public] path = FILE.npz")
        return found


def ready_method(spec: FederationSpec, equipment: Equipment) -> Method[Any]:
    """A federation's method with its parameters set, and with the equipment if it runs nets."""
    method = method_of(spec)
    if method.runs_nets:
        method.nets = equipment
    return method


def load_nets(factory: str | None) -> list[Model]:
    """The models from MODULE:FACTORY.  Raises UsageError if the factory does not exist or fails."""
    if factory is None:
        raise UsageError(
            "federation.nets: missing; this method runs the devices' models on the coordinator: give "
            'nets = "MODULE:FACTORY", a function that returns one edge_sdk model of each architecture'
        )
    make = load_function(factory, "federation.nets: ", example="my_app:nets")
    try:
        found = list(make())
    except EdgeError:
        raise
    except Exception as error:
        raise UsageError(f"federation.nets: {factory!r}: the factory failed with {error_text(error)}") from error
    if not all(hasattr(net, "spec") for net in found):
        raise UsageError(f"federation.nets: {factory!r}: expected a list of edge_sdk models, found {found!r}")
    return found
