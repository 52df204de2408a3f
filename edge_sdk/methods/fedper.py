"""FedPer (client half), and the round of every method that is FedPer with another way to train.

Arivazhagan et al. 2019, arXiv:1912.00818, Algorithm 1, with one personal layer.

take over    the body: all weights in front of the last layer, which stays the device's own
train        CE(y, f(x)), all of the model
share        the body

What is measured is the model after training, which is the one to use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step, Up
from edge_sdk.methods.requests import Evaluate, Fit, ReadWeights, WriteWeights
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.fedper import FEDPER
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire
from edge_sdk.protocol.wires import Contract

Train: TypeAlias = Callable[[Any, Job], Stage[None]]
"""(parameters, the round) -> how the round trains."""


@wire("fedper-state")
@dataclass(frozen=True, slots=True)
class FedPerState:
    """Nothing beside the model."""


def body_down(down: Mapping[str, Payload]) -> Stage[None]:
    """Overwrite the body by the one that came down, if any did."""
    if "weights" in down:
        yield WriteWeights(np.asarray(cast("Weights", down["weights"]).values, np.float32), without_head=True)


def body_up(job: Job, weighting: str) -> Stage[Up]:
    """The body as it is uploaded; how many samples stand behind it is told only where it is needed."""
    body: Weights = yield ReadWeights(without_head=True)
    return {"weights": replace(body, count=job.samples if weighting == "samples" else 1)}


def whole(_params: Any, job: Job) -> Stage[None]:
    """All of the model at once."""
    source = job.private_batches(job.local_steps)
    yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim)


class FedPerClient:
    """Shares its body, and keeps its last layer."""

    def __init__(self, contract: Contract[Any], train: Train) -> None:
        """`train`: how this method does."""
        self.contract = contract
        self._train = train

    def init(self, spec: FederationSpec) -> FedPerState:
        """Nothing beside the model."""
        return FedPerState()

    def step(self, state: FedPerState, down: Mapping[str, Payload], job: Job) -> Step[FedPerState]:
        """Take over, train, measure, share."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params = self.contract.read(job.spec.params)
        yield from body_down(down)
        if job.local_steps:
            yield from self._train(params, job)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        return state, (yield from body_up(job, params.weighting))


METHOD = FedPerClient(FEDPER, whole)
