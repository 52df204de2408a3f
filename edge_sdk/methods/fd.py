"""FD (client half): Jeong et al. 2018, arXiv:1811.11479, Algorithm 1 without its data augmentation.

train    CE(y, f(x)) + gamma CE(F^y, f(x))        F^y: the others' mean softmax output for the class of x
share    the mean softmax output of each class, in one pass in inference mode after training
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from edge_sdk.methods.base import Job, Step
from edge_sdk.methods.requests import ClassMeans, Evaluate, Fit
from edge_sdk.objectives import ClassTarget, CrossEntropy, Objective
from edge_sdk.protocol.contracts.fd import FD, FDParams
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("fd-state")
@dataclass(frozen=True, slots=True)
class FDState:
    """Nothing beside the model."""


class FDClient:
    """Learns from the mean predictions of the others; any model that gives logits."""

    contract = FD

    def init(self, spec: FederationSpec) -> FDState:
        """Nothing beside the model."""
        return FDState()

    def step(self, state: FDState, down: Mapping[str, Payload], job: Job) -> Step[FDState]:
        """Train, share; the model that is measured is the one after training, which is the one to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params = self.contract.read(job.spec.params)
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            objective = _objective(params, cast("ClassRows | None", down.get("targets")))
            yield Fit(source=source, objective=objective, optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        means: ClassRows = yield ClassMeans(of="probabilities")
        if params.weighting == "uniform":
            means = replace(means, counts=np.ones_like(means.counts))
        return state, {"predictions": means}


def _objective(params: FDParams, targets: ClassRows | None) -> Objective:
    if targets is None or params.gamma == 0:
        return (CrossEntropy(),)
    rows = targets.rows.astype(np.float32)
    return (CrossEntropy(), ClassTarget(classes=targets.classes.astype(np.int64), rows=rows, weight=params.gamma))


METHOD = FDClient()
