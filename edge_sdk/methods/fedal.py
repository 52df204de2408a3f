"""FedAL: logits on public samples, a discriminator on the coordinator, and less-forgetting on the device.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024,
equations 4-6 and Algorithm 1.  A round is a local stage and a transfer stage of tau iterations.

    device n       local stage      CE(y, f(x)) + KL(p_glo || p)                            p_glo: at the round's start
                   transfer stage   KL(mean of the others || p) + U_n + KL(p_loc || p)      p_loc: after the local stage
    coordinator    the mean of the others' logits for each device; one ascent step of the discriminator h on the
                   contributors, U_n = log softmax(h(softmax(f_n / E_D)))_n; and the gradient of U_n at f_n

The rounds on the device are those of transfer.py; this file adds the discriminator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import RunFailed
from edge_sdk.methods.contract.base import Down, OnDevice, Slot, check_batch, torch_part
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.transfer import Transfer, TransferProgress, targets
from edge_sdk.objectives import NORM_FLOOR, LogitGradient, Term, softmax
from edge_sdk.objectives.optim import Schedule
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Packed, Tensor, wire
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.toml_table import NO_KEYS
from edge_sdk.reductions import Bag

LEAST_RATIO = 0.05
"""The norm of the adversarial gradient over that of the KL gradient below which it counts as without effect (W19)."""
Layer = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedAL; the defaults are the paper's (its section V), but for the discriminator's optimiser.

    That comes from a sweep (docs/results/fedal-discriminator.md): the paper's has no effect in a few hundred steps.
    """

    preset: Literal["none", "paper"] = "none"
    """`paper`: the paper's settings as defaults; on small data they have no effect."""
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
    """The neurons of the discriminator's hidden layers, from the input on; empty for none."""
    adversarial: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of U_n; 0 leaves FedMD-LF."""
    less_forgetting: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of both less-forgetting terms; 0 with adversarial 0 leaves FedMD with tau iterations."""
    gradient_clip: Annotated[float, Range(0, 1e6)] = 1.0
    """Largest norm of a sample's adversarial gradient; 0, as in the paper, does not clip."""
    held_ratio: Annotated[float, Range(0, 1000)] = 0.0
    """The ratio at which the norm of a device's adversarial gradient on a batch, with its weight, is held to that of
    its KL gradient; 0, as in the paper, leaves it unchanged."""
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
            found = f"found {self.discriminator_layers!r}"
            raise ValueError(f"discriminator_layers: expected up to 4 numbers of 1 to 9999, as 32,265, {found}")

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
"""The discriminator's settings and weight from section V of the paper."""
PRESETS: Mapping[str, Mapping[str, Scalar]] = {"paper": PAPER}


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


A = TypeVar("A", bound=Params)


class Adversarial(Transfer[A]):
    """Adds to the transfer stage what the coordinator's discriminator sends."""

    terms = frozenset({*Transfer.terms, "logit-gradient"})

    def more_down(self) -> Mapping[str, Slot]:
        """Return the gradient of U_n at the device's logits."""
        return {"adversarial": Slot(LogitGradients, personal=True, optional=True, rows=self.params.public_batch)}

    def misfit(self, devices: int) -> str:
        """Check that each device has an output of the discriminator."""
        if devices > self.params.max_devices:
            return f"max_devices: {self.params.max_devices} slots for {devices} devices; each device needs one"
        return ""

    @classmethod
    def read(cls, table: Mapping[str, Scalar], prefix: str = "method.", elsewhere: Mapping[str, str] = NO_KEYS) -> A:
        """Read parameters from a table; a preset fills in missing keys."""
        return super().read({**PRESETS.get(str(table.get("preset")), {}), **table}, prefix, elsewhere)

    def without_effect(self, spec: FederationSpec, newest: Mapping[str, float]) -> tuple[str, ...]:
        """Warn of an adversarial gradient that is small beside the KL gradient, which reduces the method to FedMD-LF.

        U near log(1/N) alone is not a fault: the method aims at devices that deceive the discriminator.
        """
        ratio = newest.get("adversarial_ratio", math.inf)
        if ratio >= LEAST_RATIO:
            return ()
        text = f"the adversarial gradient is {ratio:.1%} of the KL gradient; raise method.discriminator_rate"
        return (f"{text}, let the discriminator learn by adam, or set method.held_ratio",)

    def terms_received(self, device: OnDevice[TransferProgress], batch: Ints) -> tuple[Term, ...]:
        """Return the terms of equation 6 that came: imitate the others, deceive the discriminator."""
        came = super().terms_received(device, batch)
        adversarial = device.received(LogitGradients, "adversarial")
        if adversarial is None:
            return came
        check_batch(adversarial, device.job.spec, batch)
        gradient = adversarial.values.astype(np.float32)[None]  # (1, b, k)
        return (*came, LogitGradient(gradient=gradient, weight=self.params.adversarial))


class FedAL(Adversarial[Params]):
    """Trains the discriminator on the coordinator, in each iteration of the transfer stage."""

    name = "fedal"
    title = "FedAL: logits, an adversarial discriminator, less forgetting"
    citation = "Han, Shi and Huang 2024, IEEE JSAC, FedAL"

    def begin(self, spec: FederationSpec) -> State:
        """Return a seeded discriminator with one output for each slot."""
        return first_state(self.params, spec)

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the feedback of the iteration before; none in the first exchange or to a device that missed it."""
        return feedback_to(state, at.exchange, number)

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute one iteration of the transfer stage; the last exchange of a round only confirms."""
        return after_iteration(self.params, spec, state, at, uploads)

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Bag
    ) -> Mapping[str, float]:
        """Measure the discriminator's accuracy, and the strength of its gradient."""
        return adversarial_instruments(self.params, after, uploads)


# -- the coordinator's part -----------------------------------------------------------------------------------------


def first_state(params: Params, spec: FederationSpec) -> State:
    """Return a seeded discriminator; none if the adversarial term has no weight."""
    return State(discriminator=first_discriminator(params, spec)) if params.adversarial > 0 else State()


def feedback_to(state: State, iteration: int, number: int) -> Down:
    """Return the feedback for one device in an iteration, which is of the iteration before."""
    feedback = state.feedback.get(str(number)) if iteration > 0 else None
    return {} if feedback is None else {"mean": feedback.mean, "adversarial": feedback.adversarial}


def after_iteration(params: Params, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
    """Return the state after an iteration, which `at.exchange` counts: means of logits, and a discriminator's step."""
    if at.exchange == params.tau:
        return replace(state, feedback={})
    ups = uploads.payloads(PublicLogits, "logits")
    means = targets(ups, params.target)
    gradients: dict[int, LogitGradients] = {}
    if params.adversarial > 0:
        state, gradients = train_discriminator(state, ups, params, params.rate(spec, at.round))
        gradients = at_held_ratio(gradients, ups, means, params)
    feedback = {str(each): Feedback(mean=means.get(each), adversarial=gradients.get(each)) for each in ups}
    return replace(state, feedback=feedback)


def adversarial_instruments(params: Params, after: State, uploads: Bag) -> dict[str, float]:
    """Return how well the discriminator distinguishes the devices, and the weight of its gradient.

    `discriminator_accuracy`: the share of public samples whose device it names; `discriminator_u`: the mean of U_n;
    `discriminator_chance`: log(1/N), its U_n if it knows nothing; `adversarial_ratio`: the norm of the adversarial
    gradient at the logits, with its weight, over that of the KL gradient, mean over devices.
    """
    ups = uploads.payloads(PublicLogits, "logits")
    if not after.discriminator or not ups or not after.feedback:
        return {}
    module = torch_part("torch_fedal", "FedAL's discriminator")
    state = module.DiscriminatorState(after.discriminator, after.moments, after.steps)
    logits, slots = np.stack([up.values.astype(np.float32) for up in ups.values()]), np.array(list(ups), np.int64)
    ratios = []
    for number, up in ups.items():
        came = after.feedback[str(number)]
        if came.mean is not None and came.adversarial is not None:
            pull = np.linalg.norm(kl_gradient(up, came.mean, params.temperature))
            ratios.append(params.adversarial * np.linalg.norm(came.adversarial.values) / max(pull, NORM_FLOOR))
    found = {
        "discriminator_accuracy": module.accuracy_of(
            state, logits, slots=slots, seen=np.array(after.seen), params=params
        ),
        "discriminator_u": after.mean_u,
        "discriminator_chance": -math.log(len(after.seen)),
    }
    return found | ({"adversarial_ratio": float(np.mean(ratios))} if ratios else {})


def clip(gradients: Floats, most: float) -> Floats:
    """Shorten each sample's gradient (..., k) to norm `most`; 0 leaves it unchanged."""
    if most == 0:
        return gradients
    norms = np.sqrt((gradients.astype(np.float64) ** 2).sum(axis=-1, keepdims=True) + 1e-12)
    clipped: Floats = (gradients * np.minimum(1.0, most / norms)).astype(np.float32)
    return clipped


def at_held_ratio(
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


def first_discriminator(params: Params, spec: FederationSpec) -> tuple[Floats, ...]:
    """Return seeded weights and biases in turn, flattened.  Raises UsageError if the compute device is missing."""
    module = torch_part("torch_fedal", "FedAL's discriminator")
    module.check_discriminator_device(params.device)
    return tuple(
        layer.reshape(-1)
        for layer in module.initial_discriminator(spec.classes, params.max_devices, spec.seed, params.hidden)
    )


def train_discriminator(
    state: State, ups: Mapping[int, PublicLogits], params: Params, rate: float
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
    outcome = module.ascent_step(before, logits, slots=slots, seen=np.array(seen), params=params, rate=rate)
    now = outcome.state
    after = replace(state, discriminator=now.weights, moments=now.moments, steps=now.steps, mean_u=outcome.mean_u)
    after = replace(after, seen=seen)
    gradients = clip(outcome.gradients, params.gradient_clip)
    return after, {
        number: LogitGradients(values=gradients[i], batch=up.batch) for i, (number, up) in enumerate(ups.items())
    }
