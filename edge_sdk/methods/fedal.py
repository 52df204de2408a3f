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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import RunFailed
from edge_sdk.methods.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, check_batch, torch_part
from edge_sdk.methods.params import Range
from edge_sdk.methods.requests import Fit, Logits, Public
from edge_sdk.objectives import CrossEntropy, Distill, LessForgetting, LogitGradient, Term, softmax
from edge_sdk.objectives.schedule import Schedule
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.protocol.schema import Count, Matrix, Packed, Tensor, wire
from edge_sdk.reductions import mean_in_order

ROUND_TRIP_BUDGET = 5000
"""Round trips above which a lock-step method gets a warning; the paper's longest runs are of that order."""
Layer = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]


@dataclass(frozen=True, kw_only=True)
class Params:
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
    discriminator_temperature: Annotated[float, Range(0.01, 100)] = 2.0
    """E_D: temperature of the discriminator's input."""
    discriminator_rate: Annotated[float, Range(0, 10, paper="0.0001")] = 3e-4
    """eta_d; keep it well below the devices' rate, or the discriminator saturates and gives no signal."""
    discriminator_optimiser: Literal["sgd", "adam"] = "adam"
    """The discriminator's optimiser.  The paper's Algorithm 1 uses plain SGD."""
    discriminator_schedule: Literal["constant", "step", "exponential", "cosine"] = "constant"
    """How eta_d falls from round to round, as `train.schedule` does."""
    discriminator_factor: Annotated[float, Range(0, 1)] = 1.0
    """With `step` and `exponential`: the factor."""
    discriminator_every_rounds: Annotated[int, Range(1)] = 1
    """With `step`: rounds between two steps."""
    discriminator_layers: str = "32,265"
    """The neurons of the discriminator's hidden layers, from the input on; empty: none."""
    adversarial: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of U_n; 0 leaves FedMD-LF."""
    less_forgetting: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of both less-forgetting terms; 0 with adversarial 0 leaves FedMD with tau iterations."""
    gradient_clip: Annotated[float, Range(0, 1e6)] = 1.0
    """Largest norm of a sample's adversarial gradient; 0, as in the paper: no clipping."""
    held_ratio: Annotated[float, Range(0, 1000)] = 0.0
    """The ratio at which the norm of a device's adversarial gradient on a batch, with its weight, is held to that of
    its KL gradient; 0, as in the paper: it is what it is."""
    target: Literal["leave-one-out", "all"] = "leave-one-out"
    """Equations 4-6 leave the device itself out; line 15 of Algorithm 1 (`all`) does not."""
    max_devices: Annotated[int, Range(1, 100_000)] = 64
    """The number of the discriminator's outputs; slots are never used again within a job."""
    device: str = "cpu"
    """Where the coordinator trains the discriminator: cpu or cuda:N."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda:[0-9]{1,3}", self.device):
            raise ValueError(f"device: expected cpu or cuda:N, found {self.device!r}")
        if not re.fullmatch(r"([1-9][0-9]{0,3}(,[1-9][0-9]{0,3}){0,3})?", self.discriminator_layers):
            told = f"found {self.discriminator_layers!r}"
            raise ValueError(f"discriminator_layers: expected up to 4 numbers of 1 to 9999, as 32,265, {told}")

    @property
    def hidden(self) -> tuple[int, ...]:
        """The neurons of the discriminator's hidden layers."""
        return tuple(map(int, filter(None, self.discriminator_layers.split(","))))

    def rate(self, spec: FederationSpec, round_: int) -> float:
        """Return eta_d in a round."""
        return Schedule(
            kind=self.discriminator_schedule,
            first=self.discriminator_rate,
            factor=self.discriminator_factor,
            every_rounds=self.discriminator_every_rounds,
            rounds=spec.rounds,
        ).rate(round_)


PAPER: Mapping[str, Scalar] = {
    "discriminator_optimiser": "sgd",
    "discriminator_rate": 1e-4,
    "discriminator_layers": "32,265",
    "adversarial": 1.0,
    "less_forgetting": 1.0,
    "gradient_clip": 0.0,
    "held_ratio": 0.0,
    "discriminator_temperature": 2.0,
}
"""What section V of the paper says of the discriminator and its weight."""
PRESETS: Mapping[str, Mapping[str, Scalar]] = {"paper": PAPER}


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


@wire("fedal-feedback")
@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The results of the last iteration for one device."""

    mean: PublicLogits | None = None
    adversarial: LogitGradients | None = None


@wire("fedal-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The discriminator as flat arrays, and the feedback for the next exchange."""

    discriminator: tuple[Layer, ...] = ()  # weights and biases in turn, flattened
    moments: tuple[Layer, ...] = ()
    steps: Count = 0
    mean_u: float = 0.0
    seen: Annotated[tuple[int, ...], Packed(100_000)] = ()
    """The devices that ever brought logits: outputs of other numbers take no part in the discriminator's softmax."""
    feedback: Mapping[str, Feedback] = field(default_factory=dict)
    """The feedback by device number."""


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
        return State(discriminator=first_discriminator(self.params, spec)) if _adversarial(self.params) else State()

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
        if _adversarial(self.params):
            state, gradients = discriminated(state, ups, self.params, spec, at.round)
            gradients = held(gradients, ups, means, self.params)
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


def clip(gradients: Floats, most: float) -> Floats:
    """Shorten each sample's gradient (..., k) to norm `most`; 0: leave it unchanged."""
    if most == 0:
        return gradients
    norms = np.sqrt((gradients.astype(np.float64) ** 2).sum(axis=-1, keepdims=True) + 1e-12)
    clipped: Floats = (gradients * np.minimum(1.0, most / norms)).astype(np.float32)
    return clipped


def held(
    gradients: Mapping[int, LogitGradients],
    ups: Mapping[int, PublicLogits],
    means: Mapping[int, PublicLogits],
    params: Params,
) -> dict[int, LogitGradients]:
    """Return adversarial gradients whose norm on a batch is `held_ratio` times that of the KL gradient.

    A device without a target, or without any gradient, keeps what it has.
    """
    after = dict(gradients)
    for number, gradient in gradients.items() if params.held_ratio else ():
        target = means.get(number)
        norm = params.adversarial * float(np.linalg.norm(gradient.values))
        if target is not None and norm > 0:
            wanted = params.held_ratio * float(np.linalg.norm(kl_gradient(ups[number], target, params.temperature)))
            values = (gradient.values * (wanted / norm)).astype(np.float32)
            after[number] = replace(gradient, values=values)
    return after


def kl_gradient(own: PublicLogits, target: PublicLogits, temperature: float) -> Floats:
    """Return the slope of KL(softmax(target / E) || softmax(own / E)) at each sample's own logits: (b, k)."""
    ours, theirs = (softmax(each.values.astype(np.float32), temperature) for each in (own, target))
    out: Floats = (ours - theirs) / np.float32(temperature)
    return out


# -- the discriminator; its torch part is torch_fedal.py --------------------------------------------------------------


def _adversarial(params: object) -> TypeGuard[Params]:
    return isinstance(params, Params) and params.adversarial > 0


def first_discriminator(params: Params, spec: FederationSpec) -> tuple[Floats, ...]:
    """Return seeded weights and biases in turn, flattened.  Raises UsageError if the compute device is missing."""
    module = torch_part("torch_fedal", "FedAL's discriminator")
    module.check_device(params.device)
    return tuple(
        layer.reshape(-1)
        for layer in module.initial_discriminator(spec.classes, params.max_devices, spec.seed, params.hidden)
    )


def discriminated(
    state: State, ups: Mapping[int, PublicLogits], params: Params, spec: FederationSpec, round_: int
) -> tuple[State, dict[int, LogitGradients]]:
    """Lines 16-18 of Algorithm 1: train the discriminator by one step, and differentiate U_n for each contributor."""
    module = torch_part("torch_fedal", "FedAL's discriminator")
    slots = np.array(list(ups), np.int64)  # (n,)
    if int(slots.max()) >= params.max_devices:
        raise RunFailed(
            f"device number {slots.max()}: the discriminator has {params.max_devices} slots; raise max_devices"
        )
    logits = np.stack([up.values.astype(np.float32) for up in ups.values()])  # (n, b, k)
    before = module.DiscriminatorState(state.discriminator, state.moments, state.steps)
    seen = tuple(sorted({*state.seen, *ups}))
    outcome = module.ascended(
        before, logits, slots=slots, seen=np.array(seen), params=params, rate=params.rate(spec, round_)
    )
    now = outcome.state
    after = replace(state, discriminator=now.weights, moments=now.moments, steps=now.steps, mean_u=outcome.mean_u)
    after = replace(after, seen=seen)
    gradients = clip(outcome.gradients, params.gradient_clip)
    return after, {
        number: LogitGradients(values=gradients[i], batch=up.batch) for i, (number, up) in enumerate(ups.items())
    }
