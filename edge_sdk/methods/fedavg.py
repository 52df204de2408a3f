"""FedAvg (client half), and the round of every method that is FedAvg with another loss.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.

    take over    w <- w^t                     nothing came in round 0: the device's own weights
    train        the method's loss
    share        w and the number of samples

What is measured is the averaged model as it arrives, before it is trained on.  Nothing survives on the device: the
averaged weights overwrite its own, and the optimiser starts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step, Up
from edge_sdk.methods.requests import Evaluate, Fit, Private, ReadWeights, WriteWeights
from edge_sdk.objectives import CrossEntropy, Objective
from edge_sdk.protocol.contracts.fedavg import FEDAVG
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire
from edge_sdk.protocol.wires import Contract

More: TypeAlias = Callable[[Any, Job], Stage[Mapping[str, Payload]]]
"""(parameters, the round) -> what to upload beside the weights, asked of the trained model."""
Loss: TypeAlias = Callable[[Any, Mapping[str, Payload], Private], Stage[Objective]]
"""(parameters, what came down, the round's batches) -> what to minimise; may ask the model first."""


@wire("fedavg-state")
@dataclass(frozen=True, slots=True)
class FedAvgState:
    """Nothing beside the model."""


def take_over(down: Mapping[str, Payload], role: str = "weights") -> Stage[None]:
    """Overwrite the model's weights by those that came down, if any did."""
    if role in down:
        # A view of the frame that they came in: megabytes that need not be there twice.
        yield WriteWeights(np.asarray(cast("Weights", down[role]).values, np.float32))


def share(job: Job, weighting: str) -> Stage[Weights]:
    """The weights as they are uploaded; how many samples stand behind them is told only where it is needed."""
    weights: Weights = yield ReadWeights()
    return replace(weights, count=job.samples if weighting == "samples" else 1)


def cross_entropy(_params: Any, _down: Mapping[str, Payload], _source: Private) -> Stage[Objective]:
    """Plain training."""
    yield from ()
    return (CrossEntropy(),)


def nothing(_params: Any, _job: Job) -> Stage[Mapping[str, Payload]]:
    """No upload beside the weights."""
    yield from ()
    return {}


class FedAvgClient:
    """Takes over the mean, trains, gives its weights back."""

    def __init__(self, contract: Contract[Any], loss: Loss, more: More = nothing, *, measured: str = "weights") -> None:
        """`loss`: what this method minimises on the device; `more`: what it shares beside the weights.

        `measured`: the role, where it came, whose weights are the method's result; training begins with `weights`.
        """
        self.contract = contract
        self._loss, self._more, self._measured = loss, more, measured

    def init(self, spec: FederationSpec) -> FedAvgState:
        """Nothing beside the model."""
        return FedAvgState()

    def step(self, state: FedAvgState, down: Mapping[str, Payload], job: Job) -> Step[FedAvgState]:
        """Take over, measure, train, share."""
        params = self.contract.read(job.spec.params)
        measured = self._measured if self._measured in down else "weights"
        yield from take_over(down, measured)
        if job.evaluates_last:
            yield Evaluate(job.round)
        if job.closing:
            return state, {}
        if measured != "weights":
            yield from take_over(down)
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            objective = yield from self._loss(params, down, source)
            del down  # the weights that came are in the model now; there may be no room for another copy of them
            yield Fit(source=source, objective=objective, optim=job.optim)
        more = yield from self._more(params, job)
        up: Up = {"weights": (yield from share(job, params.weighting)), **more}
        return state, up


METHOD = FedAvgClient(FEDAVG, cross_entropy)
