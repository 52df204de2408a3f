"""A transfer stage of several iterations: devices learn from the mean of the others' logits, and do not forget.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024.
The rounds of FedMD-LF (fedmd_lf.py), of FedAL (fedal.py), which adds a discriminator, and of FedDF-AL (feddf_al.py),
which averages weights before them.

There are 1 + tau exchanges a round, because the results of the last iteration must also come down.  A snapshot is kept
as its logits on the coming batches, which saves a second model in memory.  In the first round the local less-forgetting
term is left out, because it would anchor to a random network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.contract.base import Exchange, Method, OnDevice, Slot, Stage, Up, check_batch
from edge_sdk.methods.contract.requests import Fit, Logits, Public
from edge_sdk.objectives import CrossEntropy, Distill, LessForgetting, Term
from edge_sdk.protocol.frames.schema import Count, Matrix, wire
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.reductions import mean_in_order

ROUND_TRIP_BUDGET = 5000
"""Round trips above which a lock-step method gets a warning; the paper's longest runs have about as many."""


class TransferParams(Protocol):
    """The parameters that a transfer stage needs."""

    @property
    def tau(self) -> int:
        """The number of iterations."""

    @property
    def public_batch(self) -> int:
        """B: public samples per iteration."""

    @property
    def temperature(self) -> float:
        """E: temperature of the KL terms."""

    @property
    def less_forgetting(self) -> float:
        """The weight of the less-forgetting terms."""

    @property
    def target(self) -> str:
        """The devices whose mean a device learns from."""


T = TypeVar("T", bound=TransferParams)


@wire("fedal-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """The progress of this device in the round."""

    local_rounds: Count = 0
    """The number of rounds whose local stage is done."""
    snapshot: Matrix | None = None  # (tau * b, k): logits after the local stage, on all batches of the transfer stage


class Transfer(Method[T]):
    """The rounds on a device; a method adds the coordinator's part.

    A predict-only model uploads logits and does not train.
    """

    teaches = frozenset({"predict"})
    terms = frozenset({"cross-entropy", "distill", "less-forgetting"})
    needs_public_set = True
    lock_step = True
    discloses = "logits on the public samples, which may reveal properties of the private samples"
    cautions = (
        "W4: tau = 1, at which the less-forgetting terms have no effect",
        f"W5: more than {ROUND_TRIP_BUDGET} blocking round trips in a run",
    )
    device_state = TransferProgress
    before = 0
    """The number of exchanges of a round before the first iteration."""

    def __init__(self, params: T | None = None) -> None:
        super().__init__(params)
        self.exchanges = self.iterations()

    def iterations(self) -> tuple[Exchange, ...]:
        """Return the exchanges; exchange i uploads logits of iteration i, and brings results of iteration i - 1."""
        rows = self.params.public_batch
        up = {"logits": Slot(PublicLogits, rows=rows)}
        down = {"mean": Slot(PublicLogits, personal=True, optional=True, rows=rows)}
        down |= self.more_down()
        between = [Exchange(down=down, up=up) for _ in range(self.params.tau - 1)]
        return (Exchange(up=up), *between, Exchange(down=down))

    def more_down(self) -> Mapping[str, Slot]:
        """Return an iteration's knowledge other than the mean."""
        return {}

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warnings W4 and W5."""
        found = []
        if self.params.tau == 1 and self.params.less_forgetting > 0:
            found.append("W4: at tau = 1 the less-forgetting terms have no effect; use tau >= 2")
        trips = self.params.tau * spec.rounds
        if trips > ROUND_TRIP_BUDGET:
            found.append(
                f"W5: {trips} blocking round trips (at 200 ms each {trips * 0.2 / 60:.0f} min of waiting); "
                "on slow links use fedmd, which needs one a round"
            )
        return tuple(found)

    # -- on the device ----------------------------------------------------------------------------------------------

    def exchange(self, device: OnDevice[TransferProgress]) -> Stage[Up]:
        """Run iteration i: learn from iteration i - 1, then compute logits on the batch of iteration i."""
        params, job, iteration = self.params, device.job, device.job.exchange - self.before
        if job.learns and device.state.local_rounds != job.round + 1:
            yield from self.train(device)
            device.state = TransferProgress(local_rounds=job.round + 1)
        if iteration < 0:
            return (yield from self.share(device))
        batches = self.public_batches(device)  # (tau, b)
        if job.learns and device.state.snapshot is None and iteration < params.tau:
            yield from self.receive(device)
            after: Floats = yield Logits(Public(batches))  # (tau, b, k)
            device.state = replace(device.state, snapshot=after.reshape(-1, after.shape[-1]))
        if job.learns and iteration > 0:
            yield from self.transfer(device, batches, done=iteration - 1)
        if iteration == params.tau:
            return {}
        logits: Floats = (yield Logits(Public(batches[iteration][None])))[0]  # (b, k)
        return {"logits": PublicLogits(values=logits, batch=batch_digest(job.spec, batches[iteration]))}

    def public_batches(self, device: OnDevice[TransferProgress]) -> Ints:
        """The public batches P^{t,0..tau-1} of this round, each named by the exchange that uploads it: (tau, b)."""
        spec, round_, size = device.job.spec, device.job.round, self.params.public_batch
        exchanges = range(self.before, self.before + self.params.tau)
        return np.stack([batch_indices(spec, round_, each, size) for each in exchanges])

    def train(self, device: OnDevice[TransferProgress]) -> Stage[None]:
        """Run the local stage: once a round, also on a device that joins the round late."""
        params, job = self.params, device.job
        if not job.local_steps:
            return
        objective: list[Term] = [CrossEntropy()]
        if job.round > 0 and params.less_forgetting > 0:
            before: Floats = yield Logits(device.batches)
            objective.append(
                LessForgetting(logits=before, temperature=params.temperature, weight=params.less_forgetting)
            )
        yield Fit(source=device.batches, objective=tuple(objective), optim=job.optim)

    def transfer(self, device: OnDevice[TransferProgress], batches: Ints, *, done: int) -> Stage[None]:
        """Take one step on the batch of iteration `done`; a device that missed that iteration skips the step."""
        params, job = self.params, device.job
        came = self.terms_received(device, batches[done])
        if device.state.snapshot is None or not came:
            return
        before = device.state.snapshot.reshape(params.tau, params.public_batch, -1)[done][None]  # (1, b, k)
        kept = LessForgetting(logits=before, temperature=params.temperature, weight=params.less_forgetting)
        objective: tuple[Term, ...] = (kept, *came) if params.less_forgetting > 0 else came
        yield Fit(source=Public(batches[done : done + 1]), objective=objective, optim=job.optim)

    def terms_received(self, device: OnDevice[TransferProgress], batch: Ints) -> tuple[Term, ...]:
        """Return the terms from an iteration's results on this batch (b,), or empty without results."""
        mean = device.received(PublicLogits, "mean")
        if mean is None:
            return ()
        check_batch(mean, device.job.spec, batch)
        return (Distill(logits=mean.values.astype(np.float32)[None], temperature=self.params.temperature),)


def targets(ups: Mapping[int, PublicLogits], target: str) -> dict[int, PublicLogits]:
    """Return the target of each contributor: the mean of the others (equations 4-6), or the mean of all (line 15)."""
    batch, others = next(iter(ups.values())).batch, len(ups) - 1
    if target == "all":
        mean = PublicLogits(values=mean_in_order(up.values for up in ups.values()), batch=batch, contributors=len(ups))
        return dict.fromkeys(ups, mean)
    if not others:
        return {}  # a single device has no others to learn from
    total = np.sum([up.values for up in ups.values()], axis=0, dtype=np.float64)  # (b, k), in number order
    return {
        number: PublicLogits(values=((total - up.values) / others).astype(np.float32), batch=batch, contributors=others)
        for number, up in ups.items()
    }
