"""FedTGP: prototypes that a small net on the coordinator learns, apart by an adaptive margin.

Zhang, Liu, Hua and Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024 (arXiv:2401.03230), Algorithm 1.

    train     CE(y, f(x)) + lambda mean (R(x) - P_y)^2, as FedProto's               equation 8
    share     of each class held the mean feature, as in inference after training   equation 2
    reduce    the net learns on every (mean feature h, class c) of each device      torch_fedtgp.py
                CE(c, softmax(-(D + delta onehot(c)))), D_k = |h - P_k|             equation 5
              delta: the largest distance of a class's mean to its nearest other class's, at most tau     equation 6

A device predicts by the nearest of all prototypes, or by its own head; both are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, as_sent, torch_part
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.last_layer import every_class, items_of, random_rows
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, WriteHead
from edge_sdk.methods.fedproto import pulled
from edge_sdk.privacy.release import head_of
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Matrix, wire
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag

_STREAM = 0x66746770
"""Separates these draws from the draws of devices, whose seeds end in their number."""
WHAT = "FedTGP's prototypes"


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedTGP; the defaults are those of the authors' code, but for lambda."""

    mse_weight: Annotated[float, Range(0, 1e6, paper="10")] = 10.0
    """lambda, times the mean over B d of the squared differences; the authors tune it, and take 10."""
    margin_most: Annotated[float, Range(0, 1e6, paper="100")] = 100.0
    """tau, the largest margin; margins grow with the scale of features."""
    server_epochs: Annotated[int, Range(1, 100_000, paper="100")] = 100
    """Passes over the mean features of a round."""
    server_rate: Annotated[float, Range(0, 100, paper="0.01")] = 0.01
    """The learning rate of the net (SGD)."""
    server_batch: Annotated[int, Range(0, 65536, paper="10")] = 0
    """The number of mean features in a mini-batch; 0 takes train.batch_size."""
    predict: Literal["prototype", "head"] = "prototype"
    """How a device predicts, and is measured: by the nearest `prototype`, as in the paper, or by its own `head`."""


@wire("fedtgp-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The net, and the prototypes that it gives, or None before the first round."""

    embedding: Matrix  # (k, d)
    first: Matrix  # (d, d + 1), bias last
    second: Matrix  # (d, d + 1), bias last
    prototypes: ClassRows | None = None  # (k, d)


DOWN = {"prototypes": Slot(ClassRows, optional=True)}


class FedTGP(Method[Params]):
    """A device with a frozen extractor contributes its means, and does not learn from others."""

    name = "fedtgp"
    title = "FedTGP: prototypes that the coordinator learns, kept apart by a margin"
    citation = "Zhang et al. 2024, AAAI, arXiv:2401.03230"
    exchanges = (Exchange(down=DOWN, up={"means": Slot(ClassRows)}),)
    closing = Exchange(down=DOWN)
    personal_after = "arrival"
    needs = frozenset({"predict", "logit-gradients", "features"})
    terms = frozenset({"cross-entropy", "prototype-pull"})
    same_width = True
    holders_wanted = 1
    discloses = "which classes the device holds, and the mean feature of each"

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        if self.params.predict == "prototype":  # the prototypes become the last layer at the end
            self.needs = self.needs | {"head-rows"}

    # -- on the device ----------------------------------------------------------------------------------------------

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure by the nearest prototype and by the head; at the end the model keeps the one that it predicts by."""
        prototypes, spec = device.received(ClassRows, "prototypes"), device.job.spec
        by = self.params.predict
        yield Evaluate(device.job.round, prototypes, predicts_by="head" if prototypes is None else by)
        if device.job.closing and prototypes is not None and by == "prototype":
            classes, rows = prototypes.classes.astype(np.int64), prototypes.rows.astype(np.float64)
            nearest = head_of(classes, rows, spec.classes, never=0)  # there is a prototype of every class
            yield WriteHead(np.arange(spec.classes), nearest.astype(np.float32))

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train towards the prototypes, once they exist."""
        yield from device.fit(pulled(device.received(ClassRows, "prototypes"), self.params.mse_weight))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the mean features, each as one item."""
        means: ClassRows = yield ClassMeans()
        return {"means": as_sent(means, "uniform")}

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> State:
        """Start with a seeded net: an embedding from N(0, 1), and layers as they begin on devices."""
        torch_part("torch_fedtgp", WHAT)  # raises MissingExtra now
        rng, width = np.random.default_rng([spec.seed, _STREAM]), spec.feature_dim
        embedding = rng.normal(size=(spec.classes, width)).astype(np.float32)
        return State(embedding=embedding, first=random_rows(width, width, rng), second=random_rows(width, width, rng))

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the prototypes of all classes, also of those that no device holds."""
        return {"prototypes": state.prototypes}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Train the net on the mean features of the round."""
        module, (x, y) = torch_part("torch_fedtgp", WHAT), items_of(means_of_round(uploads))
        net = module.trained_net(
            net_of(state),
            x,
            y,
            epochs=self.params.server_epochs,
            rate=self.params.server_rate,
            batch=self.params.server_batch or spec.train.batch_size,
            margin=margin(x, y, self.params.margin_most),
            rng=np.random.default_rng([spec.seed, _STREAM, at.round]),
        )
        return State(embedding=net[0], first=net[1], second=net[2], prototypes=every_class(module.prototypes_of(net)))

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Bag
    ) -> Mapping[str, float]:
        """Return the margin, and the net's loss on the round's mean features before and after its training."""
        module, (x, y) = torch_part("torch_fedtgp", WHAT), items_of(means_of_round(uploads))
        delta = margin(x, y, self.params.margin_most)
        losses = {
            f"prototype_loss_{when}": module.separation_loss(net_of(state), x, y, delta)
            for when, state in (("before", before), ("after", after))
        }
        return {"prototype_margin": delta, **losses}


def means_of_round(uploads: Bag) -> list[ClassRows]:
    """Return the mean features of a round, in the order of device numbers."""
    return list(uploads.payloads(ClassRows, "means").values())


def net_of(state: State) -> tuple[Floats, Floats, Floats]:
    """Return the net's arrays."""
    return state.embedding, state.first, state.second


def margin(x: Floats, y: Ints, most: float) -> float:
    """Return delta: the largest distance of a class's plain mean to its nearest neighbour's, at most `most`.

    x (n, d): mean features; y (n,): their classes.  With a single class there is no distance, and delta is `most`.
    """
    rows = x.astype(np.float64)
    means = np.stack([rows[y == label].mean(axis=0) for label in np.unique(y)])  # (m, d)
    if len(means) < 2:
        return most
    gaps = np.sqrt(((means[:, None] - means[None]) ** 2).sum(axis=-1))  # (m, m)
    np.fill_diagonal(gaps, np.inf)
    return min(float(gaps.min(axis=1).max()), most)
