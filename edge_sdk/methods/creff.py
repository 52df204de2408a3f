"""CReFF: FedAvg, and a last layer that the coordinator retrains on features that match the devices' gradients.

Shang et al., "Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with Federated
Features", IJCAI 2022 (arXiv:2204.13399), Algorithm 1.  (W, b): the retrained last layer.

    receive   w <- w^t; of each class held the mean gradient of CE(y, W h + b) at (W, b) over the device's samples
    train     CE(y, f(x)) from w^t, with FedAvg's own last layer
    share     w, and the gradients
    reduce    w as in FedAvg; the federated features learn to have the gradients that devices have; (W, b) is trained
              on these features from a new start                            torch_creff.py

The result is the extractor of w^{t+1} under (W, b); the next round continues with FedAvg's own last layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import DISCLOSES, DOWN, UP, Averaging, write_weights
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage, Up, as_sent, torch_part
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.last_layer import every_class, random_rows
from edge_sdk.methods.contract.requests import HeadGradients, ReadHead, WriteHead
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Matrix, wire
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MixedSum, mean_over_holders

_STREAM = 0x63726566
"""Separates these draws from the draws of devices, whose seeds end in their number."""
WHAT = "CReFF's last layer"


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of CReFF; the defaults are those of the authors' code."""

    features_per_class: Annotated[int, Range(1, 10_000, paper="100")] = 100
    """M, the number of federated features of each class."""
    match_steps: Annotated[int, Range(0, 100_000, paper="100")] = 100
    """Steps in each round that bring the features' gradients to those of the devices."""
    feature_rate: Annotated[float, Range(0, 100, paper="0.1")] = 0.1
    """The learning rate of these steps (SGD)."""
    retrain_epochs: Annotated[int, Range(1, 100_000, paper="300")] = 300
    """Passes over the federated features that retrain the last layer in each round."""
    retrain_rate: Annotated[float, Range(0, 100, paper="0.01")] = 0.01
    """The learning rate of the last layer (SGD)."""
    retrain_batch: Annotated[int, Range(1, 65536, paper="32")] = 32
    """The number of federated features in a mini-batch."""
    weighting: Weighting = "samples"
    """The mean of weights over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


@wire("creff-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The weights w^t, the federated features, and the last layer that was trained on them."""

    weights: Weights | None = None
    features: Matrix  # (k M, d), class by class
    classifier: Matrix  # (k, d + 1), bias last
    rounds: Count


class CReFF(Averaging[Params]):
    """Averages weights, and trains the last layer again on the coordinator."""

    name = "creff"
    title = "CReFF: FedAvg, and a last layer retrained on features that match the devices' gradients"
    citation = "Shang et al. 2022, IJCAI, arXiv:2204.13399"
    needs = frozenset({"predict", "logit-gradients", "features", "head-rows", "weights"})
    same_width = True
    holders_wanted = 1
    discloses = f"{DISCLOSES}; which classes the device holds, and of each the mean gradient at the last layer, whose\
 direction is that of its mean feature"
    reduction = MixedSum
    exchanges = (
        Exchange(
            down={**DOWN, "classifier": Slot(ClassRows, optional=True, extra_columns=1)},
            up={**UP, "gradients": Slot(ClassRows, optional=True, class_times=True, class_columns=True)},
        ),
    )
    closing = Exchange(down=exchanges[0].down)

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over the mean, and ask for the gradients at the last layer that came with it."""
        yield from write_weights(device)
        classifier = device.received(ClassRows, "classifier")
        if classifier is not None and not device.job.closing:
            device.kept = yield HeadGradients(classifier.rows.astype(np.float32))

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the mean under the retrained last layer, which does not exist before the end of round 0."""
        classifier = device.received(ClassRows, "classifier")
        if classifier is None or device.job.round < 2:
            yield from super().measure(device)
            return
        own: Floats = yield ReadHead()  # (k, d + 1)
        yield WriteHead(classifier.classes.astype(np.int64), classifier.rows.astype(np.float32))
        yield from super().measure(device)
        if not device.job.closing:
            yield WriteHead(np.arange(len(own)), own)

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the weights, and the gradients if a last layer was received."""
        gradients: ClassRows | None = device.kept
        rows = {"gradients": as_sent(gradients, "uniform")} if gradients is not None else {}
        return {**(yield from super().share(device)), **rows}

    def begin(self, spec: FederationSpec) -> State:
        """Start with features from N(0, 1) and a random last layer."""
        torch_part("torch_creff", WHAT)  # raises MissingExtra now
        rng = np.random.default_rng([spec.seed, _STREAM])
        count = spec.classes * self.params.features_per_class
        features = rng.normal(size=(count, spec.feature_dim)).astype(np.float32)
        return State(features=features, classifier=random_rows(spec.classes, spec.feature_dim, rng), rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the weights and the last layer, from the second round on."""
        if state.weights is None:
            return {}
        return {"weights": state.weights, "classifier": every_class(state.classifier)}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: MixedSum) -> State:
        """Average the weights; match the features to the mean gradients, and train the last layer on these features."""
        weights = self.mean(uploads.weights, state.weights)
        ups = list(uploads.rest.payloads(ClassRows, "gradients").values())
        if not ups:
            return State(weights=weights, features=state.features, classifier=state.classifier, rounds=state.rounds)
        params, module, mean = self.params, torch_part("torch_creff", WHAT), mean_over_holders(ups)
        gradients = mean.rows.reshape(len(mean.classes), *state.classifier.shape)  # (m, k, d + 1)
        features = module.matched(
            state.features.reshape(spec.classes, params.features_per_class, -1),
            state.classifier,
            mean.classes,
            gradients,
            steps=params.match_steps,
            rate=params.feature_rate,
        )  # (k, M, d)
        rng = np.random.default_rng([spec.seed, _STREAM, at.round])
        classifier = module.retrained(
            random_rows(spec.classes, spec.feature_dim, rng),
            features,
            epochs=params.retrain_epochs,
            rate=params.retrain_rate,
            batch=params.retrain_batch,
            rng=rng,
        )
        return State(
            weights=weights,
            features=features.reshape(len(state.features), -1),
            classifier=classifier,
            rounds=state.rounds,
        )
