"""Local training alone (client half)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.methods.base import Job, Step
from edge_sdk.methods.requests import Evaluate, Fit
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.contracts.local import LOCAL
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire


@wire("local-state")
@dataclass(frozen=True, slots=True)
class LocalState:
    """Nothing to remember."""


class LocalClient:
    """The same private steps as any method, and nothing else."""

    contract = LOCAL

    def init(self, spec: FederationSpec) -> LocalState:
        """Nothing to remember."""
        return LocalState()

    def step(self, state: LocalState, down: Mapping[str, Payload], job: Job) -> Step[LocalState]:
        """Train on private batches; measure."""
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        if job.learns and job.local_steps:
            source = job.private_batches(job.local_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=job.optim)
        if job.evaluates:
            yield Evaluate(job.round + 1)
        return state, {}


METHOD = LocalClient()
