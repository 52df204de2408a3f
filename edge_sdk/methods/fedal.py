"""FedAL: logits on public samples, a discriminator on the coordinator, and less-forgetting on the device.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024,
equations 4-6 and Algorithm 1.  A round is a local stage and a transfer stage of tau iterations.

    device n       local stage      CE(y, f(x)) + KL(p_glo || p)                            p_glo: at the round's start
                   transfer stage   KL(mean of the others || p) + U_n + KL(p_loc || p)      p_loc: after the local stage
    coordinator    the mean of the others' logits for each device; one ascent step of the discriminator h on the
                   contributors, U_n = log softmax(h(softmax(f_n / E_D)))_n; and the gradient of U_n at f_n

There are 1 + tau exchanges a round, for what the last iteration computes must come down, too.  Snapshots are kept as
their logits on the batches to come, so no second model is held in memory.  In the first round the local less-forgetting
term would anchor to a random network, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, check_batch
from edge_sdk.methods.fedal_discriminator import (
    PRESETS,
    DiscriminatorParams,
    Feedback,
    State,
    adversarial,
    discriminated,
    first_discriminator,
    held,
)
from edge_sdk.methods.params import Range
from edge_sdk.methods.requests import Fit, Logits, Public
from edge_sdk.objectives import CrossEntropy, Distill, LessForgetting, LogitGradient, Term
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.protocol.schema import Count, Matrix, wire
from edge_sdk.reductions import mean_in_order

ROUND_TRIP_BUDGET = 5000
"""Round trips above which a lock-step method gets a warning; the paper's longest runs are of that order."""


@dataclass(frozen=True, kw_only=True)
class Params(DiscriminatorParams):
    """Hyper-parameters of FedAL; the defaults are the paper's (its section V), but for the discriminator's optimiser.

    That comes from a sweep (docs/results/fedal-discriminator.md): the paper's moves nothing in a few hundred steps.
    """

    preset: Literal["none", "paper"] = "none"
    """`paper`: the paper's settings where a table says nothing else; they move no model on small data."""
    tau: Annotated[int, Range(1, 1000)] = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: Annotated[int, Range(1, 65536)] = 32
    """B: public samples per iteration."""
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    """E: temperature of the KL terms."""
    less_forgetting: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of both less-forgetting terms; 0 with adversarial 0 leaves FedMD with tau iterations."""
    target: Literal["leave-one-out", "all"] = "leave-one-out"
    """Equations 4-6 leave the device itself out; line 15 of Algorithm 1 (`all`) does not."""


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
        """Whose mean a device learns from."""


T = TypeVar("T", bound=TransferParams)


@wire("fedal-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The progress of this device in the round."""

    local_rounds: Count = 0
    """The number of rounds whose local stage is done."""
    snapshot: Matrix | None = None  # (tau * b, k): logits after the local stage, on all batches of the transfer stage


class Transfer(Method[T]):
    """The rounds of FedAL, FedMD-LF (without discriminator) and FedDF-AL (which averages weights first).

    A predict-only model uploads logits and does not train.
    """

    teaches = frozenset({"predict"})
    terms = frozenset({"cross-entropy", "distill", "less-forgetting", "logit-gradient"})
    needs_public_set = True
    lock_step = True
    discloses = "logits on the public samples, which can tell what the private samples are like"
    cautions = (
        "W4: tau = 1, at which the less-forgetting terms have no effect",
        f"W5: more than {ROUND_TRIP_BUDGET} blocking round trips in a run",
    )
    device_state = DeviceState
    before = 0
    """The number of exchanges of a round before the first iteration."""

    def __init__(self, params: T | None = None) -> None:
        super().__init__(params)
        self.exchanges = self.iterations()

    def iterations(self) -> tuple[Exchange, ...]:
        """Return the exchanges: exchange i uploads logits of iteration i, and brings results of iteration i - 1."""
        rows = self.params.public_batch
        up = {"logits": Slot(PublicLogits, rows=rows)}
        down = {"mean": Slot(PublicLogits, personal=True, optional=True, rows=rows)}
        if "logit-gradient" in self.terms:
            down["adversarial"] = Slot(LogitGradients, personal=True, optional=True, rows=rows)
        between = [Exchange(down=down, up=up) for _ in range(self.params.tau - 1)]
        return (Exchange(up=up), *between, Exchange(down=down))

    def misfit(self, devices: int) -> str:
        """Check that each device has an output of the discriminator."""
        if isinstance(self.params, Params) and devices > self.params.max_devices:
            return f"max_devices: {self.params.max_devices} slots for {devices} devices; each device needs one"
        return ""

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

    @classmethod
    def read(cls, table: Mapping[str, Scalar]) -> T:
        """Read parameters from a table, in which a preset fills in what is not said."""
        return super().read({**PRESETS.get(str(table.get("preset")), {}), **table})

    # -- on the device ----------------------------------------------------------------------------------------------

    def exchange(self, device: OnDevice[DeviceState]) -> Stage[Up]:
        """Run iteration i: learn from iteration i - 1, then compute logits on the batch of iteration i."""
        params, job, iteration = self.params, device.job, device.job.exchange - self.before
        if job.learns and device.state.local_rounds != job.round + 1:
            yield from self.train(device)
            device.state = DeviceState(local_rounds=job.round + 1)
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

    def public_batches(self, device: OnDevice[DeviceState]) -> Ints:
        """The public batches P^{t,0..tau-1} of this round, each named by the exchange that uploads it: (tau, b)."""
        spec, round_, size = device.job.spec, device.job.round, self.params.public_batch
        exchanges = range(self.before, self.before + self.params.tau)
        return np.stack([batch_indices(spec, round_, each, size) for each in exchanges])

    def train(self, device: OnDevice[DeviceState]) -> Stage[None]:
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

    def transfer(self, device: OnDevice[DeviceState], batches: Ints, *, done: int) -> Stage[None]:
        """Take one step on the batch of iteration `done`; a device that missed that iteration skips the step."""
        params, job = self.params, device.job
        mean = device.received(PublicLogits, "mean")
        adversarial = device.received(LogitGradients, "adversarial")
        for came in (mean, adversarial):
            if came is not None:
                check_batch(came, job.spec, batches[done])
        if device.state.snapshot is None or (mean is None and adversarial is None):
            return
        snapshot = device.state.snapshot.reshape(params.tau, params.public_batch, -1)[done]  # (b, k)
        objective = transfer_loss(params, snapshot, mean, adversarial)
        yield Fit(source=Public(batches[done : done + 1]), objective=objective, optim=job.optim)

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> Any:
        """Return a seeded discriminator with one output for each slot, if the method has a discriminator."""
        return State(discriminator=first_discriminator(self.params, spec)) if adversarial(self.params) else State()

    def down_to(self, state: Any, at: ExchangeId, number: int) -> Down:
        """Send the feedback of the iteration before; none in the first exchange or to a device that missed it."""
        feedback = state.feedback.get(str(number)) if at.exchange > 0 else None
        return {} if feedback is None else {"mean": feedback.mean, "adversarial": feedback.adversarial}

    def reduce(self, spec: FederationSpec, state: Any, at: ExchangeId, uploads: Any) -> Any:
        """Compute one iteration of the transfer stage; the last exchange of a round only confirms."""
        if at.exchange == self.params.tau:
            return replace(state, feedback={})
        ups: dict[int, PublicLogits] = uploads.payloads(PublicLogits, "logits")
        means = targets(ups, self.params.target)
        gradients: dict[int, LogitGradients] = {}
        temperature = self.params.temperature
        if adversarial(self.params):
            state, gradients = discriminated(state, ups, self.params, spec, at.round)
            gradients = held(gradients, ups, means, self.params, temperature)
        feedback = {str(each): Feedback(mean=means.get(each), adversarial=gradients.get(each)) for each in ups}
        return replace(state, feedback=feedback)


class FedAL(Transfer[Params]):
    """Adds the discriminator to the transfer stage."""

    name = "fedal"
    title = "FedAL: logits, an adversarial discriminator, less forgetting"
    citation = "Han, Shi and Huang 2024, IEEE JSAC, FedAL"


def transfer_loss(
    params: TransferParams, snapshot: Floats, mean: PublicLogits | None, adversarial: LogitGradients | None
) -> tuple[Term, ...]:
    """Return equation 6 on one batch: imitate the others, deceive the discriminator, do not forget; snapshot (b, k)."""
    terms: list[Term] = []
    if params.less_forgetting > 0:
        before = snapshot[None]  # (1, b, k)
        terms.append(LessForgetting(logits=before, temperature=params.temperature, weight=params.less_forgetting))
    if mean is not None:
        terms.append(Distill(logits=mean.values.astype(np.float32)[None], temperature=params.temperature))
    if adversarial is not None and isinstance(params, Params):
        terms.append(LogitGradient(gradient=adversarial.values.astype(np.float32)[None], weight=params.adversarial))
    return tuple(terms)


def targets(ups: Mapping[int, PublicLogits], target: str) -> dict[int, PublicLogits]:
    """Return the target of each contributor: the mean of the others (equations 4-6), or the mean of all (line 15)."""
    batch, others = next(iter(ups.values())).batch, len(ups) - 1
    if target == "all":
        mean = PublicLogits(values=mean_in_order(up.values for up in ups.values()), batch=batch, contributors=len(ups))
        return dict.fromkeys(ups, mean)
    if not others:
        return {}  # no other device exists
    total = np.sum([up.values for up in ups.values()], axis=0, dtype=np.float64)  # (b, k), in number order
    return {
        number: PublicLogits(values=((total - up.values) / others).astype(np.float32), batch=batch, contributors=others)
        for number, up in ups.items()
    }
