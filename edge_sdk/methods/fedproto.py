"""FedProto: devices average the mean features of their classes, and pull their own features towards the averages.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022 (arXiv:2105.00243).

    train     CE(y, f(x)) + lambda mean (R(x) - C^y)^2                        equations 7 and 8
    share     C_i^j, the mean of R(x) over the device's samples of class j    equation 3, in one pass after training
    reduce    C^j = sum_i n_ij C_i^j / sum_i n_ij, over the holders of j      equation 6

A device learns from the prototypes of round t - 1 in round t; the first round has none.  The last ones come with the
closing exchange, and only serve to measure inference by the nearest prototype (equation 4).

With over = "public" it is the baseline of FedAL (Han, Shi and Huang 2024, section V): features of public samples
replace class means, so that no labels are disclosed.

    receive   a step on lambda mean (R(x) - t)^2 for the public samples of the round before, t the mean of all devices
    train     CE(y, f(x))
    share     R(x) of the public samples of this round
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, as_sent, check_batch
from edge_sdk.methods.contract.description import Range, Weighting
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, Features, Fit, Public
from edge_sdk.objectives import CrossEntropy, FeatureMatch, Objective, PrototypePull
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import wire
from edge_sdk.protocol.knowledge import ClassRows, PublicFeatures
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.reductions import Bag, carried_over, mean_in_order


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedProto; the defaults are those of its authors, but for the weighting."""

    mse_weight: Annotated[float, Range(0, 1e6)] = 1.0
    """lambda, times the mean over B d of the squared differences, as in the authors' code: 1 for MNIST and FEMNIST, 0.1
    for CIFAR-10.  For a lambda on the squared L2 norm give d times as much.  0: prototypes are only measured with."""
    weighting: Weighting = "samples"
    """The mean over holders: by their `samples` of the class, which eq. 6 means, or `uniform`, as in the code."""
    over: Literal["classes", "public"] = "classes"
    """Average features over the `classes` of private samples, or over the samples of a `public` mini-batch, as in
    the comparisons of FedAL's paper."""
    public_batch: Annotated[int, Range(1, 65536)] = 32
    """B, with `over` = public: the public samples of a round."""


@wire("fedproto-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The prototypes of every class that was ever uploaded."""

    prototypes: ClassRows | None = None
    features: PublicFeatures | None = None
    """With `over` = public: the mean features of the round's public samples."""


DOWN = {"prototypes": Slot(ClassRows, optional=True)}


class FedProto(Method[Params]):
    """A device with a frozen extractor contributes its prototypes, and does not learn from others."""

    name = "fedproto"
    title = "FedProto: class prototypes, averaged, pull the features of all devices together"
    citation = "Tan et al. 2022, AAAI, arXiv:2105.00243"
    exchanges = (Exchange(down=DOWN, up={"prototypes": Slot(ClassRows)}),)
    closing = Exchange(down=DOWN)
    personal_after = "arrival"
    needs = frozenset({"predict", "logit-gradients", "features"})
    terms = frozenset({"cross-entropy", "prototype-pull"})
    same_width = True
    holders_wanted = 3
    means = frozenset({"prototypes"})
    robust = frozenset({"rows"})
    discloses = "which classes the device holds, the mean feature of each, and unless weighting is uniform its samples"

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        if self.params.over == "public":
            rows = Slot(PublicFeatures, rows=self.params.public_batch)
            down = {"features": replace(rows, optional=True)}
            self.exchanges, self.closing = (Exchange(down=down, up={"features": rows}),), Exchange(down=down)
            self.terms = frozenset({"cross-entropy", "feature-match"})
            self.needs_public_set, self.holders_wanted, self.robust = True, 0, frozenset()
            self.discloses = "features of the public samples, which may reveal properties of the private samples"

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """With public samples, take a step towards the mean features of the round before."""
        mean, job = device.received(PublicFeatures, "features"), device.job
        if mean is None or not job.learns or "feature-match" in job.inert_terms or not self.params.mse_weight:
            return
        indices = batch_indices(job.spec, job.round_before, 0, self.params.public_batch)
        check_batch(mean, job.spec, indices)
        term = FeatureMatch(targets=mean.values.astype(np.float32)[None], weight=self.params.mse_weight)
        yield Fit(source=Public(indices[None]), objective=(term,), optim=job.optim)

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure by the head, and by the nearest prototype."""
        yield Evaluate(device.job.round, device.received(ClassRows, "prototypes"))

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train towards the prototypes of all devices."""
        yield from device.fit(pulled(device.received(ClassRows, "prototypes"), self.params.mse_weight))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the device's own prototypes, or its features of this round's public samples."""
        if self.params.over == "public":
            spec = device.job.spec
            indices = batch_indices(spec, device.job.round, 0, self.params.public_batch)
            features: Floats = (yield Features(Public(indices[None])))[0]  # (b, d)
            return {"features": PublicFeatures(values=features, batch=batch_digest(spec, indices))}
        means: ClassRows = yield ClassMeans()
        return {"prototypes": as_sent(means, self.params.weighting)}

    def begin(self, spec: FederationSpec) -> State:
        """Start without prototypes."""
        return State()

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the prototypes of all classes; each device uses those of its own."""
        return {"features": state.features} if self.params.over == "public" else {"prototypes": state.prototypes}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean over the holders of each class; a class without holders keeps its last prototype."""
        if self.params.over == "public":
            ups = list(uploads.payloads(PublicFeatures, "features").values())
            return State(features=replace(ups[0], values=mean_in_order(up.values for up in ups)))
        now = self.combining.rows(list(uploads.payloads(ClassRows, "prototypes").values()))
        return state if now is None else State(carried_over(state.prototypes, now))


def pulled(prototypes: ClassRows | None, weight: float) -> Objective:
    """Return equations 7 and 8; plain cross-entropy before there are prototypes."""
    if prototypes is None or weight == 0:
        return (CrossEntropy(),)
    classes, rows = prototypes.classes.astype(np.int64), np.asarray(prototypes.rows, np.float32)
    return (CrossEntropy(), PrototypePull(classes=classes, rows=rows, weight=weight))
