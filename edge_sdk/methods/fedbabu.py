"""FedBABU (client half): Oh et al. 2022, ICLR, Algorithm 1.

take over    the body, under the last layer that all devices draw from the federation's seed
measure      after tuning; then both are put back
train        CE(y, f(x)), the body alone
share        the body
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step
from edge_sdk.methods.fedper import body_down, body_up
from edge_sdk.methods.requests import Evaluate, Fit, ReadHead, WriteHead
from edge_sdk.objectives import CrossEntropy, Floats
from edge_sdk.protocol.contracts.fedbabu import FEDBABU, FedBABUParams
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire

_STREAM = 0x62616275
"""Keeps the draw of the last layer apart from those of batches, whose seeds end in the device's number."""


@wire("fedbabu-state")
@dataclass(frozen=True, slots=True)
class FedBABUState:
    """Nothing beside the model."""


class FedBABUClient:
    """Trains a body under a head that never moves, and tunes the head for itself."""

    contract = FEDBABU

    def init(self, spec: FederationSpec) -> FedBABUState:
        """Nothing beside the model."""
        return FedBABUState()

    def step(self, state: FedBABUState, down: Mapping[str, Payload], job: Job) -> Step[FedBABUState]:
        """Take over, tune and measure, train the body, share."""
        params = self.contract.read(job.spec.params)
        yield from _take_over(down, job.spec)
        if job.evaluates_last:
            yield from _tune(params, job)
            yield Evaluate(job.round)
        if job.closing:
            return state, {}
        if job.evaluates_last:
            yield from _take_over(down, job.spec)
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim, part="body")
        return state, (yield from body_up(job, params.weighting))


def _take_over(down: Mapping[str, Payload], spec: FederationSpec) -> Stage[None]:
    own: Floats = yield ReadHead()
    yield WriteHead(np.arange(len(own)), common_head(spec, own.shape[1] - 1))
    yield from body_down(down)


def common_head(spec: FederationSpec, width: int) -> Floats:
    """The last layer of everybody, (k, d + 1): U(-1/sqrt d, 1/sqrt d), as torch's layers start."""
    bound = width**-0.5
    rows = np.random.default_rng([spec.seed, _STREAM]).uniform(-bound, bound, (spec.classes, width + 1))
    return rows.astype(np.float32)


def _tune(params: FedBABUParams, job: Job) -> Stage[None]:
    if params.tune_steps:
        source, part = job.private_batches(params.tune_steps), cast("Literal['head', 'all']", params.tune)
        optim = replace(job.optim, learning_rate=params.tune_rate * job.optim.learning_rate)
        yield Fit(source=source, objective=(CrossEntropy(),), optim=optim, part=part)


METHOD = FedBABUClient()
