"""FedAL (client half).

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024,
equations 4-6 and Algorithm 1.

    local stage      CE(y, f(x)) + KL(p_glo || p)                 p_glo: this device at the round's start
    transfer stage   KL(mean of the others || p) + U_n + KL(p_loc || p)     p_loc: this device after the local stage

Snapshots are kept as their logits on the batches to come, so no second model is held in memory.  In the first round the
local less-forgetting term would anchor to a random network, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from edge_sdk.methods.base import Job, Stage, Step, check_batch
from edge_sdk.methods.fedavg import share, take_over
from edge_sdk.methods.requests import Evaluate, Fit, Logits, Public
from edge_sdk.objectives import CrossEntropy, Distill, Floats, Ints, LessForgetting, LogitGradient, Objective, Term
from edge_sdk.protocol.contracts.fedal import FEDAL
from edge_sdk.protocol.contracts.fedmd_lf import TransferParams
from edge_sdk.protocol.knowledge import LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Matrix, wire
from edge_sdk.protocol.wires import Contract
from edge_sdk.public_set.samples import batch_digest, batch_indices


@wire("fedal-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedALState:
    """How far this device is in the round."""

    local_rounds: Count = 0
    """Rounds whose local stage is done."""
    snapshot: Matrix | None = None  # (tau * b, k): logits after the local stage, on all batches of the transfer stage


class FedALClient:
    """Two stages a round; a predict-only model only scores."""

    def __init__(self, contract: Contract[Any] = FEDAL, *, before: int = 0) -> None:
        """Of FedAL; of FedMD-LF, which lacks the adversarial term; or of FedDF-AL.

        before: exchanges of a round before the first iteration, 1 where weights are averaged after the local stage.
        """
        self.contract = contract
        self._before = before

    def init(self, spec: FederationSpec) -> FedALState:
        """Nothing done yet."""
        return FedALState()

    def step(self, state: FedALState, down: Mapping[str, Payload], job: Job) -> Step[FedALState]:
        """Iteration i: learn from iteration i - 1, score the batch of iteration i."""
        params = self.contract.read(job.spec.params)
        if job.closing:
            yield Evaluate(job.round)
            return state, {}
        iteration = job.exchange - self._before
        if job.learns and state.local_rounds != job.round + 1:
            yield from _local_stage(params, job)
            state = FedALState(local_rounds=job.round + 1)
        if iteration < 0:
            return state, {"weights": (yield from share(job, params.weighting))}
        batches = self._transfer_batches(params, job)  # (tau, b)
        if job.learns and state.snapshot is None and iteration < params.tau:
            yield from take_over(down)
            after: Floats = yield Logits(Public(batches))  # (tau, b, k)
            state = replace(state, snapshot=after.reshape(-1, after.shape[-1]))
        if job.learns and iteration > 0:
            yield from _transfer_step(state, down, batches, params, job, done=iteration - 1)
        if iteration == params.tau:
            if job.evaluates:
                yield Evaluate(job.round + 1)
            return state, {}
        chosen = batches[iteration]
        logits = (yield Logits(Public(chosen[None])))[0]  # (b, k)
        return state, {"logits": PublicLogits(values=logits, batch=batch_digest(job.spec, chosen))}

    def _transfer_batches(self, params: TransferParams, job: Job) -> Ints:
        """The public batches P^{t,0..tau-1} of this round, each named by the exchange that uploads it: (tau, b)."""
        exchanges = range(self._before, self._before + params.tau)
        return np.stack([batch_indices(job.spec, job.round, each, params.public_batch) for each in exchanges])


def _local_stage(params: TransferParams, job: Job) -> Stage[None]:
    """Private steps; run once a round, also by a device that comes in late."""
    if not job.local_steps:
        return
    private = job.private_batches(job.local_steps)
    objective: Objective = (CrossEntropy(),)
    if job.round > 0 and params.less_forgetting > 0:
        before: Floats = yield Logits(private)
        term = LessForgetting(logits=before, temperature=params.temperature, weight=params.less_forgetting)
        objective = (*objective, term)
    yield Fit(source=private, objective=objective, optim=job.optim)


def _transfer_step(
    state: FedALState, down: Mapping[str, Payload], batches: Ints, params: TransferParams, job: Job, *, done: int
) -> Stage[None]:
    """One step on the batch of iteration `done`; left out by a device that missed that iteration."""
    if "mean" not in down and "adversarial" not in down:
        return
    snapshot = cast("Floats", state.snapshot).reshape(params.tau, params.public_batch, -1)[done : done + 1]
    objective: list[Term] = []
    if params.less_forgetting > 0:
        objective.append(LessForgetting(logits=snapshot, temperature=params.temperature, weight=params.less_forgetting))
    if "mean" in down:
        mean = cast("PublicLogits", down["mean"])
        check_batch(mean, job.spec, batches[done])
        target = mean.values.astype(np.float32)[None]  # (1, b, k)
        objective.append(Distill(logits=target, temperature=params.temperature))
    if "adversarial" in down:
        adversarial = cast("LogitGradients", down["adversarial"])
        check_batch(adversarial, job.spec, batches[done])
        gradient = adversarial.values.astype(np.float32)[None]  # (1, b, k)
        objective.append(LogitGradient(gradient=gradient, weight=params.adversarial))
    yield Fit(source=Public(batches[done : done + 1]), objective=tuple(objective), optim=job.optim)


METHOD = FedALClient()
