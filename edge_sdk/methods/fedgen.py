"""FedGen: FedAvg, and a generator of features by label on the coordinator, from which devices' heads learn.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021
(arXiv:2105.10056), Algorithm 1.

    train     CE(y, f(x)) + alpha CE(y', G(h'))      equation 5; h': features that the generator made of the labels y'
    share     w, and the rows of the last layer: those of classes held, whose counts give the numbers of samples, and
    apart from them the others reduce    w as in FedAvg; the generator learns what the mean of last layers calls each
    label    equation 4

Devices receive the generated features, not the generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.contract.averaging import DISCLOSES, DOWN, UP, Averaging
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage, Up, torch_part
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.last_layer import every_class
from edge_sdk.methods.contract.requests import ReadHead, WriteHead
from edge_sdk.objectives import CrossEntropy, HeadLabels, Objective
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Vector, wire
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, MixedSum, mean_over_holders

MOST_OF_CHANCE = 0.9
"""The share of log k above which the cross-entropy of generated features counts as chance (W19)."""
_STREAM = 0x67656E
"""Separates these draws from the draws of devices, whose seeds end in their number."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedGen; those of the generator are its authors' code's, for MNIST."""

    alpha: Annotated[float, Range(0, 1000, paper="1, its code 10 that decays")] = 1.0
    """Weight of the cross-entropy on generated features.  0 gives FedAvg, with an unused generator."""
    samples_per_class: Annotated[int, Range(1, 1000)] = 8
    """The number of generated features for each class in a round."""
    diversity: Annotated[float, Range(0, 1000, paper="1")] = 1.0
    """eta, the weight of the generator's term that keeps features of one label apart."""
    hidden: Annotated[int, Range(1, 65536, paper="256")] = 256
    """Width of the generator's hidden layer."""
    noise_dim: Annotated[int, Range(1, 4096, paper="32")] = 32
    """The number of noise values in the generator's input, beside the label."""
    generator_steps: Annotated[int, Range(0, 100_000, paper="50")] = 50
    """Steps of Adam in each round."""
    generator_batch: Annotated[int, Range(2, 65536, paper="128")] = 128
    """The number of labels in each step."""
    generator_rate: Annotated[float, Range(0, 10, paper="0.0003")] = 3e-4
    """The learning rate of the generator."""
    weighting: Weighting = "samples"
    """The mean of weights over devices: by their `samples` or `uniform`."""
    shares: Literal["weights", "head"] = "weights"
    """Average all `weights`, as in the paper, or only the last layer (`head`); nets may then differ before it."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


@wire("fedgen-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The weights w^t, the generator as flat arrays, and the features that it made for the next round."""

    weights: Weights | None = None
    generator: tuple[Vector, ...] = ()  # weights and biases in turn, flattened
    generated: ClassRows | None = None  # (m, n d)
    rounds: Count
    """The number of rounds.  After the last one, generated features are not needed."""
    header: ClassRows | None = None  # (k, d + 1)
    """With `shares` = head: the mean of last layers."""


class FedGen(Averaging[Params]):
    """Averages weights, trains the generator and samples features from it."""

    name = "fedgen"
    title = "FedGen: weights, and features that a generator makes of the labels"
    citation = "Zhu et al. 2021, ICML, arXiv:2105.10056"
    needs = frozenset({"predict", "logit-gradients", "head-rows", "weights"})
    terms = frozenset({"cross-entropy", "head-labels"})
    same_width = True
    discloses = f"{DISCLOSES}; which classes the device holds, and how many samples of each"
    reduction = MixedSum
    without_weights = 'method.shares = "head"'

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        generated = Slot(ClassRows, optional=True, times=self.params.samples_per_class)
        rows = {
            "header": Slot(ClassRows, extra_columns=1),
            "others": Slot(ClassRows, optional=True, extra_columns=1, remainder=True),
        }
        self.exchanges = (Exchange(down={**DOWN, "generated": generated}, up={**UP, **rows}),)
        if self.params.shares == "head":
            down = {"header": Slot(ClassRows, optional=True, extra_columns=1), "generated": generated}
            self.exchanges, self.closing = (Exchange(down=down, up=rows),), Exchange()
            self.needs, self.shares_weights, self.global_model = self.needs - {"weights"}, False, False
            self.discloses = "all rows of the last layer, which classes the device holds, and how many samples of each"

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over the mean, or the mean of last layers."""
        header = device.received(ClassRows, "header")
        if header is not None:
            yield WriteHead(header.classes.astype(np.int64), header.rows.astype(np.float32))
        yield from super().receive(device)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train with the generated features of the round."""
        yield from device.fit(loss(self.params, device.received(ClassRows, "generated")))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the weights, and the last layer in two parts, because a class's count cannot be 0."""
        rows: Floats = yield ReadHead()  # (k, d + 1)
        counts = np.array(device.job.class_counts, np.int32)  # (k,)
        held, others = np.flatnonzero(counts), np.flatnonzero(counts == 0)
        parts = {"header": (held, counts[held]), "others": (others, np.ones(len(others), np.int32))}
        head = {
            role: ClassRows(classes=classes.astype(np.int32), rows=rows[classes], counts=weights)
            for role, (classes, weights) in parts.items()
            if len(classes)
        }
        return head if self.params.shares == "head" else {**(yield from super().share(device)), **head}

    def begin(self, spec: FederationSpec) -> State:
        """Start with a seeded generator."""
        rng = np.random.default_rng([spec.seed, _STREAM])
        layers = torch_part("torch_fedgen", "FedGen's generator").initial_generator(
            generator_shapes(spec, self.params), rng
        )
        return State(generator=tuple(layer.reshape(-1) for layer in layers), rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the weights and the features, from the second round on; at the end send the mean alone."""
        if at.round == state.rounds:
            return {"weights": state.weights} if self.params.shares == "weights" else {}
        mean = {"header": state.header} if self.params.shares == "head" else {"weights": state.weights}
        return {**mean, "generated": state.generated}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: MixedSum) -> State:
        """Average the weights, train the generator on the mean last layer, and make features of each held class."""
        params, module = self.params, torch_part("torch_fedgen", "FedGen's generator")
        of_head = self.params.shares == "head"
        weights = None if of_head else self.mean(uploads.weights, state.weights)
        header, counts = mean_head(uploads.rest, spec, only_first=self.of_unrelated_nets(state.weights))
        rng = np.random.default_rng([spec.seed, _STREAM, at.round])
        shapes = generator_shapes(spec, params)
        layers = tuple(flat.reshape(shape) for flat, shape in zip(state.generator, shapes, strict=True))
        layers = module.trained(layers, header, counts / counts.sum(), self.generator_training(), rng)
        held = np.flatnonzero(counts)  # (m,)
        features = module.made(layers, held, params.samples_per_class, spec.classes, rng)  # (m, n, d)
        generated = ClassRows(
            classes=held.astype(np.int32), rows=features.reshape(len(held), -1), counts=np.ones(len(held), np.int32)
        )
        flat_layers = tuple(layer.reshape(-1) for layer in layers)
        return State(
            weights=weights,
            generator=flat_layers,
            generated=generated,
            rounds=state.rounds,
            header=every_class(header) if of_head else None,
        )

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: MixedSum
    ) -> Mapping[str, float]:
        """Measure the generator after its training."""
        header, counts = mean_head(uploads.rest, spec, only_first=self.of_unrelated_nets(before.weights))
        layers = tuple(
            flat.reshape(shape)
            for flat, shape in zip(after.generator, generator_shapes(spec, self.params), strict=True)
        )
        rng = np.random.default_rng([spec.seed, _STREAM, at.round, 1])  # other numbers than in training
        module = torch_part("torch_fedgen", "FedGen's generator")
        return dict(module.generator_figures(layers, header, counts / counts.sum(), self.generator_training(), rng))

    def without_effect(self, spec: FederationSpec, newest: Mapping[str, float]) -> tuple[str, ...]:
        """Warn of a generator whose features the mean last layer does not recognise."""
        found, chance = newest.get("generator_cross_entropy", 0.0), math.log(spec.classes)
        if found < MOST_OF_CHANCE * chance:
            return ()
        text = f"generated features say nothing of their class (cross-entropy {found:.2f}, chance {chance:.2f}); raise"
        return (f"{text} method.generator_steps or method.generator_rate",)

    def generator_training(self) -> Any:
        """Return how the generator learns in a round."""
        params = self.params
        return torch_part("torch_fedgen", "FedGen's generator").GeneratorTraining(
            steps=params.generator_steps,
            batch=params.generator_batch,
            rate=params.generator_rate,
            diversity=params.diversity,
        )


def loss(params: Params, generated: ClassRows | None) -> Objective:
    """Return equation 5, with all generated features in each step; in round 0 there are no generated features."""
    if generated is None or params.alpha == 0:
        return (CrossEntropy(),)
    times = params.samples_per_class
    features = generated.rows.astype(np.float32).reshape(len(generated.classes) * times, -1)  # (m n, d)
    labels = np.repeat(generated.classes.astype(np.int64), times)  # (m n,)
    return (CrossEntropy(), HeadLabels(features=features, labels=labels, weight=params.alpha))


def mean_head(rest: Bag, spec: FederationSpec, *, only_first: bool) -> tuple[Floats, Ints]:
    """Return the mean of last layers (k, d + 1), each device with weight 1, and the samples of each class (k,)."""
    counts = np.zeros(spec.classes, np.int64)
    for held in rest.payloads(ClassRows, "header").values():
        counts[held.classes] += held.counts
    ups = list(rest)[: 1 if only_first else None]  # in number order
    parts = [cast("ClassRows", part) for up in ups for part in up.knowledge.values()]
    once = [ClassRows(classes=each.classes, rows=each.rows, counts=np.ones_like(each.counts)) for each in parts]
    mean, header = mean_over_holders(once), np.zeros((spec.classes, spec.feature_dim + 1), np.float32)
    header[mean.classes] = mean.rows
    return header, counts


def generator_shapes(spec: FederationSpec, params: Params) -> list[tuple[int, ...]]:
    """Return the shapes of the generator's weights and biases in turn: (noise, one-hot label) -> hidden -> d."""
    inputs = params.noise_dim + spec.classes
    return [(params.hidden, inputs), (params.hidden,), (spec.feature_dim, params.hidden), (spec.feature_dim,)]
