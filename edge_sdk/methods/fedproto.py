"""FedProto (client half).

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, equations 3, 7 and 8.

    train     CE(y, f(x)) + lambda mean (R(x) - C^y)^2        C^y: the mean prototype of the class, over its holders
    share     the class means of R(x), in one pass in inference mode after training

A device learns from the prototypes of round t - 1 in round t; there are none in the first round.  The last ones come
with the closing Assign, and only serve to measure inference by the nearest prototype (eq. 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from edge_sdk.methods.base import Job, Step
from edge_sdk.methods.requests import ClassMeans, Evaluate, Fit
from edge_sdk.objectives import CrossEntropy, Objective, PrototypePull
from edge_sdk.protocol.contracts.fedproto import FEDPROTO, FedProtoParams
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("fedproto-state")
@dataclass(frozen=True, slots=True)
class FedProtoState:
    """Nothing beside the model."""


class FedProtoClient:
    """Trains towards the prototypes of all; a frozen extractor only contributes its own."""

    contract = FEDPROTO

    def init(self, spec: FederationSpec) -> FedProtoState:
        """Nothing beside the model."""
        return FedProtoState()

    def step(self, state: FedProtoState, down: Mapping[str, Payload], job: Job) -> Step[FedProtoState]:
        """Measure with the new prototypes, train, share one's own."""
        params = self.contract.read(job.spec.params)
        prototypes = cast("ClassRows | None", down.get("prototypes"))
        if job.evaluates_last:
            yield Evaluate(job.round, prototypes)
        if job.closing:
            return state, {}
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=_objective(params, prototypes), optim=job.optim)
        means: ClassRows = yield ClassMeans()
        return state, {"prototypes": _told(means, params)}


def _objective(params: FedProtoParams, prototypes: ClassRows | None) -> Objective:
    if prototypes is None or params.mse_weight == 0:
        return (CrossEntropy(),)
    pull = PrototypePull(
        classes=prototypes.classes.astype(np.int64),
        rows=prototypes.rows.astype(np.float32),
        weight=params.mse_weight,
    )
    return (CrossEntropy(), pull)


def _told(means: ClassRows, params: FedProtoParams) -> ClassRows:
    """The class means as they are sent: how many samples stand behind them is told only where it is needed."""
    if params.weighting == "samples":
        return means
    return ClassRows(classes=means.classes, rows=means.rows, counts=np.ones_like(means.counts))


METHOD = FedProtoClient()
