"""FedSSA (client half).

Yi et al., "FedSSA: Semantic Similarity-based Aggregation for Efficient Model-Heterogeneous Personalized Federated
Learning", IJCAI 2024, equations 4-6 and Algorithm 1.

    fuse     row s of the last layer <- (global + mu^t own) / (1 + mu^t)     for the classes s that this device holds
    train    CE(y, f(x)), all of the model
    share    the rows of those classes

Equation 4 lacks the division, and multiplies the rows by 1 + mu^t in every round; it is there as fusion = "literal".
Rows of other classes, unless takes = "all", and the extractor stay the device's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np

from edge_sdk.errors import UsageError
from edge_sdk.methods.base import Job, Stage, Step
from edge_sdk.methods.requests import Evaluate, Fit, ReadHead, WriteHead
from edge_sdk.objectives import CrossEntropy, Floats, Ints
from edge_sdk.protocol.contracts.fedssa import FEDSSA, FedSSAParams
from edge_sdk.protocol.knowledge import ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Packed, wire


@wire("fedssa-state")
@dataclass(frozen=True, slots=True)
class FedSSAState:
    """C_k: the classes that this device came with; empty before its first exchange."""

    classes: Annotated[tuple[int, ...], Packed(65535)] = ()


class FedSSAClient:
    """Takes over the rows of its own classes, trains, gives them back."""

    contract = FEDSSA

    def init(self, spec: FederationSpec) -> FedSSAState:
        """Which classes are its own is learned from the first exchange."""
        return FedSSAState()

    def step(self, state: FedSSAState, down: Mapping[str, Payload], job: Job) -> Step[FedSSAState]:
        """Fuse, train, share; the model that is measured is the one after training, which is the one to use."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        params = self.contract.read(job.spec.params)
        held = _held(state, job)
        if "header" in down:
            yield from _fuse(cast("ClassRows", down["header"]), held, params, job)
        if job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        rows: Floats = yield ReadHead()
        return FedSSAState(tuple(held.tolist())), {"header": _told(held, rows, params, job)}


def _held(state: FedSSAState, job: Job) -> Ints:
    """C_k; raises UsageError where the data has other classes than when the device joined (warning W16)."""
    held = job.classes
    if state.classes and state.classes != tuple(held.tolist()):
        raise UsageError(
            f"this device joined with samples of classes {list(state.classes)} and now holds {held.tolist()}: "
            "remove its state folder to join anew"
        )
    return held


def _fuse(header: ClassRows, held: Ints, params: FedSSAParams, job: Job) -> Stage[None]:
    """Rows that came down and belong to classes held, or all that came; the others keep the local value."""
    own: Floats = yield ReadHead()  # (k, d + 1)
    shared = np.isin(header.classes, held) | (params.takes == "all")
    classes = header.classes[shared].astype(np.int64)
    if len(classes):
        yield WriteHead(classes, fused(header.rows[shared], own[classes], params, job.round))


def fused(shared: Floats, own: Floats, params: FedSSAParams, round_: int) -> Floats:
    """The rows (m, d + 1) to start a round from.  Example in docs/reference/methods/fedssa.md."""
    mu = params.mu(round_)
    scale = 1 + mu if params.fusion == "convex" else 1.0
    return ((shared.astype(np.float64) + mu * own) / scale).astype(np.float32)


def _told(held: Ints, rows: Floats, params: FedSSAParams, job: Job) -> ClassRows:
    """The rows of one's own classes; how many samples stand behind them is told only where it is needed."""
    counts = np.array(job.class_counts)[held] if params.weighting == "samples" else np.ones(len(held))
    return ClassRows(classes=held.astype(np.int32), rows=rows[held], counts=counts.astype(np.int32))


METHOD = FedSSAClient()
