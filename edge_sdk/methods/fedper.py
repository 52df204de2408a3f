"""FedPer (client half): Arivazhagan et al. 2019, arXiv:1912.00818, Algorithm 1, with one personal layer.

take over    the body: all weights in front of the last layer, which stays the device's own
train        CE(y, f(x)), all of the model
share        the body
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from edge_sdk.methods.base import Evaluate, Fit, Job, ReadWeights, Step, WriteWeights
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.fedper import FEDPER
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("fedper-state")
@dataclass(frozen=True, slots=True)
class FedPerState:
    """Nothing beside the model."""


class FedPerClient:
    """Shares its body, and keeps its last layer."""

    contract = FEDPER

    def init(self, spec: FederationSpec) -> FedPerState:
        """Nothing beside the model."""
        return FedPerState()

    def step(self, state: FedPerState, down: Mapping[str, Payload], job: Job) -> Step[FedPerState]:
        """Take over, train, share; the model that is measured is the one after training, which is the one to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params = self.contract.read(job.spec.params)
        if "weights" in down:
            body = np.asarray(cast("Weights", down["weights"]).values, np.float32)
            yield WriteWeights(body, without_head=True)
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        weights: Weights = yield ReadWeights(without_head=True)
        return state, {"weights": replace(weights, count=job.samples if params.weighting == "samples" else 1)}


METHOD = FedPerClient()
