"""FedMD (client half): Li and Wang 2019, arXiv:1910.03581, in the form that FedAL compares with, and in its own.

A round: digest the consensus on the last round's public samples, train on private batches (the paper's "revisit"),
score the next public samples.  So the consensus of a round arrives with the next Assign, and the last one with the
closing Assign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step, check_batch
from edge_sdk.methods.requests import Evaluate, Fit, Logits, Public
from edge_sdk.objectives import CrossEntropy, Distill, Floats, LogitMatch, Term
from edge_sdk.protocol.contracts.fedmd import FEDMD, FedMDParams
from edge_sdk.protocol.knowledge import Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Matrix, wire
from edge_sdk.public_set.samples import batch_digest, batch_indices


@wire("fedmd-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedMDState:
    """What this device last sent: needed to take itself out of the mean."""

    round: Count = 0
    sent: Matrix | None = None  # (b, k)


def leave_one_out(mean: Floats, own: Floats, contributors: int) -> Floats | None:
    """The mean of the others, (N mean - own) / (N - 1); None where there are no others.  Example in methods.md F.1."""
    if contributors < 2:
        return None
    total = mean.astype(np.float64) * contributors - own
    return (total / (contributors - 1)).astype(np.float32)


class FedMDClient:
    """Learns from the others' mean logits; a predict-only model only scores."""

    contract = FEDMD

    def init(self, spec: FederationSpec) -> FedMDState:
        """Nothing sent yet."""
        return FedMDState()

    def step(self, state: FedMDState, down: Mapping[str, Payload], job: Job) -> Step[FedMDState]:
        """Digest, train, score."""
        params = self.contract.read(job.spec.params)
        if job.learns and "mean" in down:
            yield from _digest(state, down, params, job)
        if job.evaluates_last:
            yield Evaluate(job.round)
        if job.closing:
            return state, {}
        if job.learns and job.local_steps:
            batches = job.private_batches(job.local_steps)
            yield Fit(source=batches, objective=(CrossEntropy(),), optim=job.optim)
        indices = batch_indices(job.spec, job.round, 0, params.scored)
        logits = (yield Logits(Public(indices[None])))[0]  # (b, k)
        up = PublicLogits(values=logits, batch=batch_digest(job.spec, indices))
        return FedMDState(round=job.round, sent=logits), {"logits": up}


def _digest(state: FedMDState, down: Mapping[str, Payload], params: FedMDParams, job: Job) -> Stage[None]:
    """Steps on the public samples that the mean was made on: those of the round before."""
    last = job.round - 1
    mean = cast("PublicLogits", down["mean"])
    indices = batch_indices(job.spec, last, 0, params.scored)
    check_batch(mean, job.spec, indices)
    target: Floats | None = mean.values.astype(np.float32)
    inside = state.sent is not None and state.round == last and "others" not in down
    if params.leaves_out and inside:
        target = leave_one_out(mean.values, cast("Floats", state.sent), mean.contributors)
    if target is not None:
        size = min(params.public_batch, params.scored)
        chosen = np.resize(np.arange(params.scored), (params.steps, size))  # (steps, b), pass after pass
        yield Fit(source=Public(indices[chosen]), objective=(_term(params, target[chosen]),), optim=job.optim)


def _term(params: FedMDParams, targets: Floats) -> Term:
    if params.form == "fedal":
        return Distill(logits=targets, temperature=params.temperature)
    return LogitMatch(logits=targets, error="squared" if params.error == "squared" else "absolute")


METHOD = FedMDClient()
