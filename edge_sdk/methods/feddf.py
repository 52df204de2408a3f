"""FedDF: models are averaged within each architecture, and then each mean learns from all of them, on the coordinator.

Lin, Kong, Stich and Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020
(arXiv:2006.07242), Algorithms 1 and 3.

    train     CE(y, f(x)): on the device it is FedAvg, whose weights may be those of its architecture alone
    reduce    f <- the mean of its architecture, then min KL( softmax(mean_k f_k(x)) || softmax(f(x)) ) over public
              samples x, where k runs over the uploaded models of all architectures

An architecture without uploads in a round is distilled from its last state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.averaging import DISCLOSES, UP, Averaging
from edge_sdk.methods.contract.base import Down, Exchange, Slot
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.objectives import Distill, Optim
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Items, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, WeightedSum, mean_in_order

_STREAM = 0x46444446
"""Separates the draw of these batches from the draws of devices."""
DOWN = {"weights": Slot(Weights, personal=True, optional=True)}


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedDF."""

    steps: Annotated[int, Range(0, 10**6, paper="10000 at most")] = 200
    """Distillation steps of each architecture and round; the paper takes up to 10,000, ended early on labelled
    validation samples, which a coordinator lacks.  With 0 nothing is distilled."""
    distill_batch: Annotated[int, Range(1, 65536, paper="128")] = 128
    """The number of public samples in each step."""
    distill_rate: Annotated[float, Range(1e-8, 10, paper="0.001")] = 1e-3
    """The learning rate of Adam.  It is constant; the paper's rate falls along a cosine."""
    temperature: Annotated[float, Range(0.01, 100, paper="1")] = 1.0
    """The temperature of both softmaxes."""
    weighting: Weighting = "samples"
    """The mean over devices of one architecture: by their `samples` or `uniform`."""
    start: Start = "first"
    """An architecture's first mean: `first`, its lowest-numbered contributor's model; `equal`: all start alike."""


@wire("feddf-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """One model for each architecture, by layout, and the layout of each device."""

    models: Annotated[Mapping[str, Weights], Items()] = field(default_factory=dict)
    members: Annotated[Mapping[str, str], Items()] = field(default_factory=dict)
    """The layout of each device, by device number."""


class FedDF(Averaging[Params]):
    """Keeps all uploads of a round, because each is a teacher."""

    name = "feddf"
    title = "FedDF: equal architectures averaged, then distilled from all, on the coordinator"
    citation = "Lin et al. 2020, NeurIPS, arXiv:2006.07242"
    exchanges = (Exchange(down=DOWN, up=UP),)
    closing = Exchange(down=DOWN)
    same_layout = False
    runs_nets = True
    discloses = DISCLOSES
    reduction = Bag

    def begin(self, spec: FederationSpec) -> State:
        """Start without models: devices begin with their own."""
        return State()

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send nothing to all devices, because the model depends on the architecture."""
        return {}

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the model of the device's architecture."""
        layout = state.members.get(str(number))
        return {"weights": state.models.get(layout or "")}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Average, then distil.  Raises UsageError if the net of an architecture is missing."""
        ups = uploads.payloads(Weights, "weights")
        sums: dict[str, WeightedSum] = {}
        for number, weights in ups.items():
            layout = weights.layout.hex()
            sums[layout] = sums.get(layout, WeightedSum()).add(number, weights)
        means = {layout: self.mean(total, state.models.get(layout)) for layout, total in sums.items()}
        joined = {str(number): layout for number, layout in self.registered.layouts.items()}
        members = {**state.members, **joined, **{str(number): each.layout.hex() for number, each in ups.items()}}
        models = {**state.models, **means}
        if self.params.steps:
            rng = np.random.default_rng([spec.seed, _STREAM, at.round])
            models = self.distilled(models, list(ups.values()), rng)
        return State(models, members)

    def distilled(
        self, models: Mapping[str, Weights], teachers: Sequence[Weights], rng: np.random.Generator
    ) -> dict[str, Weights]:
        """Return each model after its distillation steps, with new Adam moments.  Teachers answer once."""
        nets, params = self.nets, self.params
        if nets is None:
            raise UsageError("feddf runs the devices' models on the coordinator, which was given no models")
        nets.check(bytes.fromhex(layout) for layout in models)
        target = mean_in_order(nets.logits(each) for each in teachers)  # (n, k)
        size = min(params.distill_batch, nets.count)
        steps = np.stack([rng.choice(nets.count, size, replace=False) for _ in range(params.steps)])  # (steps, b)
        objective = (Distill(logits=target[steps], temperature=params.temperature),)
        optim = Optim(kind="adam", learning_rate=params.distill_rate)
        return {layout: nets.fitted(model, steps, objective, optim) for layout, model in models.items()}
