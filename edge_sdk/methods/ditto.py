"""Ditto (client half): Li et al. 2021, ICML, arXiv:2012.04221, Algorithm 1.

    the mean's part    w <- w^t, train CE, share w                       as in FedAvg
    its own part       train v on CE + (lambda / 2) |v - w^t|^2          on the same batches

v is the device's model: it is what predicts and what is measured, and it never leaves the device.  While w is trained,
v waits in the generator: there is one model in memory, and copies of weights beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.methods.base import Job, Stage, Step, Up
from edge_sdk.methods.fedavg import share, take_over
from edge_sdk.methods.requests import Evaluate, Fit, ReadWeights, WriteWeights
from edge_sdk.objectives import CrossEntropy, Floats, Proximal
from edge_sdk.protocol.contracts.ditto import DITTO
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("ditto-state")
@dataclass(frozen=True, slots=True)
class DittoState:
    """Nothing beside the model, which between two exchanges is the device's own."""


class DittoClient:
    """Trains two models a round, one for all and one for itself."""

    contract = DITTO

    def init(self, spec: FederationSpec) -> DittoState:
        """Nothing beside the model."""
        return DittoState()

    def step(self, state: DittoState, down: Mapping[str, Payload], job: Job) -> Step[DittoState]:
        """Train for all and share; train one's own, which is the one to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params = self.contract.read(job.spec.params)
        own: Weights = yield ReadWeights()
        yield from take_over(down)
        anchor: Weights = yield ReadWeights()  # w^t; in round 0 the device's own, for nothing came
        yield from _train(job)
        up: Up = {"weights": (yield from share(job, params.weighting))}
        yield WriteWeights(own.values)
        yield from _train(job, anchor.values, params.attraction)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        return state, up


def _train(job: Job, anchor: Floats | None = None, attraction: float = 0.0) -> Stage[None]:
    """The round's private steps, near the anchor if there is one."""
    if job.local_steps:
        near = (Proximal(anchor=anchor, weight=attraction),) if anchor is not None and attraction else ()
        source = job.private_batches(job.local_steps)
        yield Fit(source=source, objective=(CrossEntropy(), *near), optim=job.optim)


METHOD = DittoClient()
