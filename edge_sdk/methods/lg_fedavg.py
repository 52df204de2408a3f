"""LG-FedAvg (client half): Liang et al. 2020, arXiv:2001.01523, Algorithm 1, with the last layer as the global part.

take over    the whole last layer; the extractor stays the device's own
train        CE(y, f(x)), all of the model
share        the whole last layer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from edge_sdk.methods.base import Job, Step
from edge_sdk.methods.requests import Evaluate, Fit, ReadHead, WriteHead
from edge_sdk.objectives import CrossEntropy, Floats, Objective
from edge_sdk.protocol.contracts.lg_fedavg import LG_FEDAVG
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire
from edge_sdk.protocol.wires import Contract

Loss: TypeAlias = Callable[[Any, "ClassRows | None"], Objective]
"""(parameters, the last layer that came) -> what to minimise."""


@wire("lg-fedavg-state")
@dataclass(frozen=True, slots=True)
class LGFedAvgState:
    """Nothing beside the model."""


class LGFedAvgClient:
    """Shares its last layer, and nothing of what is in front of it."""

    def __init__(self, contract: Contract[Any], loss: Loss) -> None:
        """`loss`: what this method minimises on the device."""
        self.contract = contract
        self._loss = loss

    def init(self, spec: FederationSpec) -> LGFedAvgState:
        """Nothing beside the model."""
        return LGFedAvgState()

    def step(self, state: LGFedAvgState, down: Mapping[str, Payload], job: Job) -> Step[LGFedAvgState]:
        """Take over, train, share; the model that is measured is the one after training, which is the one to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        header = cast("ClassRows | None", down.get("header"))
        if header is not None:
            yield WriteHead(header.classes.astype(np.int64), header.rows.astype(np.float32))
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            objective = self._loss(self.contract.read(job.spec.params), header)
            yield Fit(source=source, objective=objective, optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        rows: Floats = yield ReadHead()  # (k, d + 1)
        classes = np.arange(len(rows), dtype=np.int32)
        return state, {"header": ClassRows(classes=classes, rows=rows, counts=np.ones_like(classes))}


def cross_entropy(_params: Any, _header: ClassRows | None) -> Objective:
    """Plain training."""
    return (CrossEntropy(),)


METHOD = LGFedAvgClient(LG_FEDAVG, cross_entropy)
