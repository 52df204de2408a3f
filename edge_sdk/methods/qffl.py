"""q-FedAvg (client half): Li et al. 2020, ICLR, arXiv:1905.10497, Algorithm 2.

take over    w <- w^t
measure      F(w^t): the mean loss on all own samples, in inference mode
train        CE(y, f(x))
share        w, and F(w^t) as one number more
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_sdk.methods.base import Job, Step
from edge_sdk.methods.fedavg import FedAvgState, share, take_over
from edge_sdk.methods.requests import Evaluate, Fit, MeanLoss
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.qffl import QFFL
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec


class QFFLClient:
    """Tells how well the mean serves it, before it trains on."""

    contract = QFFL

    def init(self, spec: FederationSpec) -> FedAvgState:
        """Nothing beside the model."""
        return FedAvgState()

    def step(self, state: FedAvgState, down: Mapping[str, Payload], job: Job) -> Step[FedAvgState]:
        """Take over, measure, train, share."""
        yield from take_over(down)
        if job.evaluates_last:
            yield Evaluate(job.round)
        if job.closing:
            return state, {}
        loss: float = yield MeanLoss()
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim)
        weights = yield from share(job, "uniform")
        return state, {"weights": replace(weights, values=np.append(weights.values, np.float32(loss)))}


METHOD = QFFLClient()
