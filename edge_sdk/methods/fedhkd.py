"""FedHKD (client half): Chen et al. 2023, ICLR, equation 11 and Algorithm 1.

train    CE(y, f(x)) + lambda (1/K) sum_j |softmax(G(H^j) / T) - Q^j| + gamma |R(x) - H^y|
share    w, and of each class with enough samples the mean feature and the mean of softmax(G(R(x)) / T)

H^j, Q^j: the hyper-knowledge of all, constants.  There is none in the first round, which is plain training.  With noise
the sums over every class are shared instead, of shortened features; without weights each device keeps its own model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step
from edge_sdk.methods.fedavg import FedAvgClient, FedAvgState
from edge_sdk.methods.requests import Evaluate, Fit, HyperMeans, Private
from edge_sdk.noise import gaussian
from edge_sdk.objectives import CrossEntropy, HeadMatch, Objective, PrototypeDistance
from edge_sdk.protocol.contracts.fedhkd import FEDHKD, FedHKDParams
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Payload


def distilling(params: FedHKDParams, down: Mapping[str, Payload], _source: Private) -> Stage[Objective]:
    """The three terms of equation 11, where there is hyper-knowledge; a term that weighs nothing is left out."""
    yield from ()
    if "hyper" not in down:
        return (CrossEntropy(),)
    hyper = cast("HyperKnowledge", down["hyper"])
    features = hyper.features.astype(np.float32)
    head = HeadMatch(
        features=features,
        soft=hyper.soft.astype(np.float32),
        temperature=params.temperature,
        weight=params.soft_weight,
    )
    near = PrototypeDistance(classes=hyper.classes.astype(np.int64), rows=features, weight=params.feature_weight)
    return (CrossEntropy(), *(term for term in (head, near) if term.weight))


def hyper_knowledge(params: FedHKDParams, job: Job) -> Stage[Mapping[str, Payload]]:
    """The hyper-knowledge of the classes that pass the threshold, nothing where none does; or noised sums."""
    if params.noise_features:
        return (yield from _noised_sums(params, job))
    means: HyperKnowledge = yield HyperMeans(params.temperature)
    shared = (means.counts >= params.min_count) & (means.counts >= params.nu * job.samples)  # (m,)
    if not shared.any():
        return {}
    return {
        "hyper": HyperKnowledge(
            classes=means.classes[shared],
            features=means.features[shared],
            soft=means.soft[shared],
            counts=means.counts[shared],
        )
    }


def _noised_sums(params: FedHKDParams, job: Job) -> Stage[Mapping[str, Payload]]:
    means: HyperKnowledge = yield HyperMeans(params.temperature, params.clip)
    counts = means.counts[:, None].astype(np.float64)  # (m, 1)
    d, k = means.features.shape[1], job.spec.classes
    sums = np.zeros((k, d + k + 1))
    sums[means.classes] = np.hstack([means.features * counts, means.soft * counts, counts])
    scales = (params.noise_features * params.clip, params.noise_soft, params.noise_counts)
    noised = sums + np.repeat(scales, (d, k, 1)) * gaussian(job.secret, sums)
    classes = np.arange(k, dtype=np.int32)
    return {"sums": ClassRows(classes=classes, rows=noised.astype(np.float32), counts=np.ones_like(classes))}


class FedHKDClient(FedAvgClient):
    """A round of FedAvg with another loss and more to share; or all but the weights of it."""

    def step(self, state: FedAvgState, down: Mapping[str, Payload], job: Job) -> Step[FedAvgState]:
        """Without weights, what is measured is the model after training, which is the one to use."""
        params: FedHKDParams = self.contract.read(job.spec.params)
        if params.share_weights:
            return (yield from super().step(state, down, job))
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            objective = yield from distilling(params, down, source)
            yield Fit(source=source, objective=objective, optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        return state, (yield from hyper_knowledge(params, job))


METHOD = FedHKDClient(FEDHKD, distilling, hyper_knowledge)
