"""FedRoD (client half): Chen and Chao 2022, ICLR, arXiv:2107.00778, equations 5 and 6, Algorithm 1.

    generic part     (theta, G) <- mean, train CE(y, softmax(G R(x) + gamma log n)), share (theta, G)
    personal part    train P on CE(y, softmax((G + P) R(x))), theta and G as they are

G + P is one linear layer: the device's model has its rows, predicts with them, and is what is measured.  P is kept from
round to round, and never leaves the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_sdk.methods.base import Job, Step, Up
from edge_sdk.methods.fedavg import share, take_over
from edge_sdk.methods.requests import Evaluate, Fit, ReadHead, WriteHead
from edge_sdk.objectives import BalancedCrossEntropy, CrossEntropy, Floats
from edge_sdk.protocol.contracts.fedrod import FEDROD, FedRoDParams
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Matrix, wire


@wire("fedrod-state")
@dataclass(frozen=True, slots=True)
class FedRoDState:
    """P; none before the first round, when it is zero."""

    personal: Matrix | None = None  # (k, d + 1)


class FedRoDClient:
    """Trains the shared model, then what it adds for itself."""

    contract = FEDROD

    def init(self, spec: FederationSpec) -> FedRoDState:
        """P is zero."""
        return FedRoDState()

    def step(self, state: FedRoDState, down: Mapping[str, Payload], job: Job) -> Step[FedRoDState]:
        """Train for all and share; train one's own on top, which is the model to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params: FedRoDParams = self.contract.read(job.spec.params)
        yield from take_over(down)
        steps = job.spec.train.local_steps
        if steps:
            balanced = BalancedCrossEntropy(counts=np.array(job.class_counts, np.float32), gamma=params.gamma)
            yield Fit(source=job.private_batches(steps), objective=(balanced,), optim=job.optim)
        up: Up = {"weights": (yield from share(job, params.weighting))}
        generic: Floats = yield ReadHead()  # (k, d + 1)
        if state.personal is not None:
            yield WriteHead(np.arange(len(generic)), generic + state.personal)
        if steps:
            yield Fit(source=job.private_batches(steps), objective=(CrossEntropy(),), optim=job.optim, part="head")
        if job.evaluates:
            yield Evaluate(job.round + 1)
        both: Floats = yield ReadHead()
        return FedRoDState(both - generic), up


METHOD = FedRoDClient()
