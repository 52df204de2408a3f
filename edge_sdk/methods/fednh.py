"""FedNH (client half): Dai et al. 2023, AAAI, equations 2 and 3, Algorithm 1.

    take over    the prototypes W as last layer; the body, where bodies are shared
    train        CE(y, s W r) with r = f / |f|: the body, and s if it is trained, never W
    share        the mean r of each class, as in inference after training; the body

What is measured is the model as it arrives, before it is trained on.  Where bodies stay on their devices that is each
device's own body under the new prototypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.base import Job, Stage, Step, Up
from edge_sdk.methods.fedper import body_down, body_up
from edge_sdk.methods.requests import ClassMeans, Evaluate, Fit, SetScale, WriteHead
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.fednh import FEDNH, FedNHParams
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire

UNIT_WITHIN = 0.05
"""How far from 1 a prototype's length may be: what the coarsest encoding does to it is less."""


@wire("fednh-state")
@dataclass(frozen=True, slots=True)
class FedNHState:
    """Whether s was set; from then on it is the device's own, or comes with the body."""

    begun: bool = False


class FedNHClient:
    """Trains a body under a head that is given."""

    contract = FEDNH

    def init(self, spec: FederationSpec) -> FedNHState:
        """Nothing beside the model."""
        return FedNHState()

    def step(self, state: FedNHState, down: Mapping[str, Payload], job: Job) -> Step[FedNHState]:
        """Take over, measure, train the body, share."""
        params = self.contract.read(job.spec.params)
        keeps_scale = params.train_scale and state.begun
        yield SetScale(None if keeps_scale else params.scale, trains=params.train_scale)
        yield WriteHead(*_head(cast("ClassRows", down["prototypes"])))
        yield from body_down(down)
        if job.evaluates_last:
            yield Evaluate(job.round)
        if job.closing:
            return state, {}
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim, part="body")
        return FedNHState(begun=True), (yield from _shared(params, job))


def _head(prototypes: ClassRows) -> tuple[np.typing.NDArray[np.int64], np.typing.NDArray[np.float32]]:
    """Classes and head rows, without bias.  Raises RemoteProtocolError where a prototype is not of length 1 (W9)."""
    rows = prototypes.rows.astype(np.float32)  # (k, d)
    off = np.abs(np.linalg.norm(rows, axis=1) - 1).max()
    if not off <= UNIT_WITHIN:
        raise RemoteProtocolError("knowledge", f"prototypes: a length is off 1 by {off:.3g}: they must be directions")
    return prototypes.classes.astype(np.int64), np.hstack([rows, np.zeros((len(rows), 1), np.float32)])


def _shared(params: FedNHParams, job: Job) -> Stage[Up]:
    means: ClassRows = yield ClassMeans()
    if params.update == "paper":  # the samples do not count there, so they are not told
        means = ClassRows(classes=means.classes, rows=means.rows, counts=np.ones_like(means.counts))
    body = (yield from body_up(job, "uniform")) if params.share_body else {}
    return {"means": means, **body}


METHOD = FedNHClient()
