"""FedHKD (client half): Chen et al. 2023, ICLR, equation 11 and Algorithm 1.

train    CE(y, f(x)) + lambda (1/K) sum_j |softmax(G(H^j) / T) - Q^j| + gamma |R(x) - H^y|
share    w, and of each class with enough samples the mean feature and the mean of softmax(G(R(x)) / T)

H^j, Q^j: the hyper-knowledge of all, constants.  There is none in the first round, which is plain training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from edge_sdk.methods.base import HyperMeans, Job, Private, Stage
from edge_sdk.methods.fedavg import FedAvgClient
from edge_sdk.objectives import CrossEntropy, HeadMatch, Objective, PrototypeDistance
from edge_sdk.protocol.contracts.fedhkd import FEDHKD, FedHKDParams
from edge_sdk.protocol.knowledge import HyperKnowledge, Payload


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
    """The hyper-knowledge of the classes that pass the threshold; nothing where none does."""
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


METHOD = FedAvgClient(FEDHKD, distilling, hyper_knowledge)
