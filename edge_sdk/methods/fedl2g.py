"""FedL2G: guiding vectors for each class, learnt by what a step towards them does to the loss on samples kept apart.

Zhang, Liu, Hua, Cao and Yang, "FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning"
(arXiv:2410.06490), Algorithm 1.  v_c: the guiding vectors; h: the features (on = "features", FedL2G-f) or the logits
(on = "logits", FedL2G-l) of m numbers; e: the learning rate.

    train     CE(y, f(x)) + mean (h(x) - v_y)^2, not before round `warm_up`
    share     w' = w - e d/dw [CE + mean (h - v_y)^2] on one study batch;
              g_c = d CE(y', f_w'(x')) / d v_c on the quiz batch, which is never trained on
    reduce    v_c <- v_c - e' g_c, the mean over the devices that sent class c

Only the gradient of the second term depends on v, and linearly.  With u = d CE(quiz) / dw' therefore

    g_c = (2 e / (b m)) sum over the study samples i of class c of (d h_i / dw) u

which is exact: the derivatives of h in the direction u, without second-order gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.arrays import Doubles, Ints
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.last_layer import every_class
from edge_sdk.methods.contract.requests import Fit, GuidanceGradients, Private, Report
from edge_sdk.objectives import ClassLogitMatch, CrossEntropy, Optim, PrototypePull, Term
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Matrix, wire
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, mean_over_holders

_STREAM, _QUIZ = 0x6C3267, 0x71757A
"""Separate these draws from other draws of the federation and of a device."""
CLIP = 100.0
"""The largest norm of a gradient, on devices where [train] has no other, and on the coordinator."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedL2G."""

    on: Literal["features", "logits"] = "features"
    """Guide the `features`, which must be equally wide on all devices, or the `logits`."""
    warm_up: Annotated[int, Range(0, paper="50")] = 10
    """Rounds at the start in which devices only send gradients, and do not train."""
    quiz_batches: Annotated[int, Range(1, 1000)] = 1
    """The samples that a device never trains on, in mini-batches: at most half of its samples."""
    server_rate: Annotated[float, Range(0, 1e6)] = 0.01
    """e', the learning rate of the guiding vectors (SGD)."""


@wire("fedl2g-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The guiding vectors."""

    vectors: Matrix  # (k, m)
    rounds: Count
    """The number of rounds.  After the last one, they are not needed."""


class FedL2G(Method[Params]):
    """Learns on the coordinator what guides devices best."""

    name = "fedl2g"
    title = "FedL2G: guiding vectors of classes, learnt by what they do to the loss on samples kept apart"
    citation = "Zhang et al. 2024, arXiv:2410.06490"
    discloses = "which classes the device holds, and of each in one batch a gradient that depends on its samples"
    holders_wanted = 1

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        on_features = self.params.on == "features"
        rows = Slot(ClassRows) if on_features else Slot(ClassRows, times=0, class_columns=True)
        self.exchanges = (Exchange(down={"guidance": rows}, up={"gradients": replace(rows, optional=True)}),)
        self.same_width = on_features
        self.needs = frozenset({"predict", "logit-gradients", "guidance-gradients"})
        if on_features:
            self.needs |= {"features"}
        self.terms = frozenset({"cross-entropy", "prototype-pull" if on_features else "class-logit-match"})

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warning W27."""
        if self.params.warm_up < spec.rounds:
            return ()
        text = f"method.warm_up = {self.params.warm_up} leaves none of {spec.rounds} rounds to train in; lower it"
        return (f"W27: {text}",)

    # -- on the device ----------------------------------------------------------------------------------------------

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train towards the guiding vectors, on all samples but the quiz."""
        job = device.job
        rest, _ = parts(job, self.params)
        if job.round < self.params.warm_up or not job.local_steps:
            return
        objective = (CrossEntropy(), self.term(device.received(ClassRows, "guidance")))
        job = replace(job, samples=len(rest))
        batches = Private(rest[job.private_batches(job.local_steps).indices])
        yield Fit(source=batches, objective=objective, optim=_with_clipping(job))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the gradient of the quiz's loss with respect to the guiding vectors of the study batch's classes."""
        job = device.job
        rest, quiz = parts(job, self.params)
        if not len(quiz) or not job.learns:
            return {}
        rng = np.random.default_rng([job.spec.seed, job.round, _QUIZ, job.number])
        study = rng.choice(rest, min(job.spec.train.batch_size, len(rest)), replace=False)
        found: ClassRows = yield GuidanceGradients(
            study=study,
            quiz=quiz,
            term=self.term(device.received(ClassRows, "guidance")),
            rate=job.optim.learning_rate,
            of_what=self.params.on,
        )
        if job.instruments:
            yield Report({"guidance_gradient": float(np.linalg.norm(found.rows.astype(np.float64)))})
        return {"gradients": found}

    def term(self, guidance: ClassRows | None) -> Term:
        """Return the mean squared difference from the guiding vectors, which came."""
        if guidance is None:
            raise TypeError("an Assign of fedl2g brings guidance")
        classes, rows = guidance.classes.astype(np.int64), np.asarray(guidance.rows, np.float32)
        if self.params.on == "features":
            return PrototypePull(classes=classes, rows=rows)
        return ClassLogitMatch(classes=classes, rows=rows)

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> State:
        """Start with vectors from N(0, 1)."""
        width = spec.feature_dim if self.params.on == "features" else spec.classes
        vectors = np.random.default_rng([spec.seed, _STREAM]).normal(size=(spec.classes, width))
        return State(vectors=vectors.astype(np.float32), rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the vectors of all classes."""
        return {"guidance": every_class(state.vectors)} if at.round < state.rounds else {}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Take one step of SGD; vectors of classes without a sender stay."""
        slopes = mean_gradient(uploads, state.vectors.shape)
        length = float(np.linalg.norm(slopes))
        slopes *= min(1.0, CLIP / length) if length else 1.0
        vectors = (state.vectors - self.params.server_rate * slopes).astype(np.float32)
        return replace(state, vectors=vectors)

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Bag
    ) -> Mapping[str, float]:
        """Return the norm of the mean gradient before it is clipped, and the mean length of a vector."""
        return {
            "guidance_mean_gradient": float(np.linalg.norm(mean_gradient(uploads, after.vectors.shape))),
            "guidance_length": float(np.linalg.norm(after.vectors, axis=1).mean()),
        }


def parts(job: Job, params: Params) -> tuple[Ints, Ints]:
    """Return the indices of the samples that are trained on, and of the quiz: the same in every round."""
    quiz = min(params.quiz_batches * job.spec.train.batch_size, job.samples // 2)
    order = np.random.default_rng([job.spec.seed, _QUIZ, job.number]).permutation(job.samples)
    return np.sort(order[quiz:]), np.sort(order[:quiz])


def _with_clipping(job: Job) -> Optim:
    """Return the optimiser of the round, which clips gradients."""
    return replace(job.optim, clip_norm=job.optim.clip_norm or CLIP)


def mean_gradient(uploads: Bag, shape: tuple[int, ...]) -> Doubles:
    """Return the mean over the devices that sent a class, zeros for a class without a sender: (k, m)."""
    found = np.zeros(shape)
    ups = list(uploads.payloads(ClassRows, "gradients").values())
    if ups:
        mean = mean_over_holders(ups)
        found[mean.classes] = mean.rows
    return found
