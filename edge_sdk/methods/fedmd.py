"""FedMD: devices average their logits on public samples and learn from the mean.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019 (arXiv:1910.03581), in two forms.
The form in FedAL's comparison: KL to the leave-one-out mean on one public mini-batch a round.  The original, `digest`:
regression on the mean logits of all devices, over many public samples a round, but without their labels.

    receive   steps towards the consensus, on the public samples of the round before   ("digest")
    train     CE(y, f(x)) on the device's own samples                                  ("revisit")
    share     f(x) on the public samples of this round                                 ("communicate")
    reduce    the mean of the logits, not of the probabilities                         ("aggregate")

So the consensus of a round arrives with the next exchange, and the last one with the closing exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, check_batch
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.requests import Fit, Logits, Public
from edge_sdk.objectives import Distill, LogitMatch, Term
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Matrix, Packed, wire
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.reductions import Bag

MAX_DEVICES = 10**6
"""The largest number of devices that a federation may have."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedMD."""

    form: Literal["fedal", "digest"] = "fedal"
    """`fedal`, the form that FedAL compares with, or `digest`, the original one."""
    public_batch: Annotated[int, Range(1, 65536)] = 32
    """B: public samples in a mini-batch; in FedAL's form also those scored in each round."""
    align: Annotated[int, Range(1, 65536, paper="5000")] = 256
    """|A|: public samples scored in each round of the form `digest`; the paper takes 5000."""
    error: Literal["absolute", "squared"] = "absolute"
    """The error that `digest` minimises: mean `absolute` error of logits, as in the paper's code, or `squared`
    error."""
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    """E, the temperature of the KL term."""
    target: Literal["by-form", "leave-one-out", "all"] = "by-form"
    """Whose mean a device learns from: the others' (`leave-one-out`), as in FedAL's form, or `all`, itself included,
    as in the original."""
    digest_steps: Annotated[int, Range(0, 1000)] = 0
    """Optimiser steps on each consensus; 0 makes one pass over the scored samples, in mini-batches."""

    @property
    def scored(self) -> int:
        """The number of public samples that are scored in each round."""
        return self.align if self.form == "digest" else self.public_batch

    @property
    def leaves_out(self) -> bool:
        """Whether a device leaves itself out of the mean that it learns from."""
        return self.target == "leave-one-out" or (self.target == "by-form" and self.form == "fedal")

    @property
    def steps(self) -> int:
        """The number of optimiser steps on each consensus."""
        return self.digest_steps or math.ceil(self.scored / self.public_batch)


@wire("fedmd-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The logits that this device sent last, which it needs to remove itself from the mean."""

    round: Count = 0
    sent: Matrix | None = None  # (b, k)


@wire("fedmd-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The mean of the last round, and the devices whose logits are in it."""

    mean: PublicLogits | None = None
    numbers: Annotated[tuple[int, ...], Packed(MAX_DEVICES)] = ()


class FedMD(Method[Params]):
    """Each device removes its own logits from a mean that they are in; a predict-only model only scores."""

    name = "fedmd"
    title = "FedMD: learn from the mean logits on public samples"
    citation = "Li and Wang 2019, arXiv:1910.03581"
    personal_after = "arrival"
    teaches = frozenset({"predict"})
    terms = frozenset({"cross-entropy", "distill"})
    needs_public_set = True
    means = frozenset({"logits"})
    robust = frozenset({"logits"})
    discloses = "logits on the public samples, which may reveal properties of the private samples"
    device_state = DeviceState

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        rows = self.params.scored
        # The mean goes to all devices, and again, as `others`, to those whose logits are not in it: a device whose
        # upload came too late cannot know that, and would remove its logits from a mean that does not have them.
        down = {
            "mean": Slot(PublicLogits, optional=True, rows=rows),
            "others": Slot(PublicLogits, personal=True, optional=True, rows=rows),
        }
        self.exchanges = (Exchange(down=down, up={"logits": Slot(PublicLogits, rows=rows)}),)
        self.closing = Exchange(down=down)
        if self.params.leaves_out:
            self.own_rounds = (
                "a device cannot take its own logits out of a mean without knowing how old they were; set "
                'method.target = "all"'
            )
        if self.params.form == "digest":
            self.terms = frozenset({"cross-entropy", "logit-match"})

    def receive(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Take steps on the public samples of the round before, on which the mean was made."""
        params, job, state = self.params, device.job, device.state
        mean = device.received(PublicLogits, "mean")
        if mean is None or not job.learns:
            return
        indices = batch_indices(job.spec, job.round_before, 0, params.scored)
        check_batch(mean, job.spec, indices)
        target: Floats | None = mean.values.astype(np.float32)
        inside = state.round == job.round - 1 and "others" not in device.down
        if params.leaves_out and inside and state.sent is not None:
            target = leave_one_out(mean.values, state.sent, mean.contributors)
        if target is not None:
            size = min(params.public_batch, params.scored)
            chosen = np.resize(np.arange(params.scored), (params.steps, size))  # (steps, b), pass after pass
            yield Fit(source=Public(indices[chosen]), objective=(loss(params, target[chosen]),), optim=job.optim)

    def share(self, device: OnDevice[DeviceState]) -> Stage[Up]:
        """Send the logits on the public samples of this round."""
        job = device.job
        indices = batch_indices(job.spec, job.round, 0, self.params.scored)
        logits: Floats = (yield Logits(Public(indices[None])))[0]  # (b, k)
        device.state = DeviceState(round=job.round, sent=logits)
        return {"logits": PublicLogits(values=logits, batch=batch_digest(job.spec, indices))}

    def begin(self, spec: FederationSpec) -> State:
        """Start without a mean."""
        return State()

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the mean of the last round, with the number of contributors."""
        return {"mean": state.mean}

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the same mean as `others` to a device whose logits are not in it."""
        return {} if number in state.numbers or not self.params.leaves_out else {"others": state.mean}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean of the logits over contributors."""
        ups = uploads.payloads(PublicLogits, "logits")
        indices = batch_indices(spec, at.round, at.exchange, self.params.scored)
        weights = [up.contributors for up in ups.values()]
        mean = self.combining.logits({number: up.values for number, up in ups.items()}, indices, weights)
        batch = next(iter(ups.values())).batch
        taken = tuple(ups) if self.combining.plain else ()  # a device can remove its own logits only from a plain mean
        return State(PublicLogits(values=mean, batch=batch, contributors=len(ups)), taken)


def leave_one_out(mean: Floats, own: Floats, contributors: int) -> Floats | None:
    """Return the mean of the others, (N mean - own) / (N - 1), or None without others.  Example: methods.md F.1."""
    if contributors < 2:
        return None
    total = mean.astype(np.float64) * contributors - own
    return (total / (contributors - 1)).astype(np.float32)


def loss(params: Params, targets: Floats) -> Term:
    """Return KL to the consensus, or regression on it; targets (steps, b, k)."""
    if params.form == "fedal":
        return Distill(logits=targets, temperature=params.temperature)
    return LogitMatch(logits=targets, error=params.error)
