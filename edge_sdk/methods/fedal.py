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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import RunFailed
from edge_sdk.methods.base import Down, OnDevice, Slot, check_batch, torch_part
from edge_sdk.methods.params import Range
from edge_sdk.methods.transfer import DeviceState, Transfer, targets
from edge_sdk.objectives import LogitGradient, Term
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Tensor, wire
from edge_sdk.reductions import Bag

Layer = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedAL; the defaults are the paper's (its section V), but for the clipping."""

    tau: Annotated[int, Range(1, 1000)] = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: Annotated[int, Range(1, 65536)] = 32
    """B: public samples per iteration."""
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    """E: temperature of the KL terms."""
    discriminator_temperature: Annotated[float, Range(0.01, 100)] = 2.0
    """E_D: temperature of the discriminator's input."""
    discriminator_rate: Annotated[float, Range(0, 10)] = 1e-4
    """eta_d; keep it well below the devices' rate, or the discriminator saturates and gives no signal."""
    discriminator_optimiser: Literal["sgd", "adam"] = "sgd"
    """The discriminator's optimiser.  The paper's Algorithm 1 uses plain SGD."""
    adversarial: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of U_n; 0 leaves FedMD-LF."""
    less_forgetting: Annotated[float, Range(0, 1000)] = 1.0
    """Weight of both less-forgetting terms; 0 with adversarial 0 leaves FedMD with tau iterations."""
    gradient_clip: Annotated[float, Range(0, 1e6)] = 1.0
    """Largest norm of a sample's adversarial gradient; 0, as in the paper: no clipping."""
    target: Literal["leave-one-out", "all"] = "leave-one-out"
    """Equations 4-6 leave the device itself out; line 15 of Algorithm 1 (`all`) does not."""
    max_devices: Annotated[int, Range(1, 100_000)] = 64
    """The number of the discriminator's outputs; slots are never used again within a job."""
    device: str = "cpu"
    """Where the coordinator trains the discriminator: cpu or cuda:N."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda:[0-9]{1,3}", self.device):
            raise ValueError(f"device: expected cpu or cuda:N, found {self.device!r}")


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

    def terms_received(self, device: OnDevice[DeviceState], batch: Ints) -> tuple[Term, ...]:
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
        return after_iteration(self.params, spec, state, at.exchange, uploads)


# -- the coordinator's half -----------------------------------------------------------------------------------------


def first_state(params: Params, spec: FederationSpec) -> State:
    """Return a seeded discriminator; none if the adversarial term has no weight."""
    return State(discriminator=first_discriminator(params, spec)) if params.adversarial > 0 else State()


def feedback_to(state: State, iteration: int, number: int) -> Down:
    """Return the feedback for one device in an iteration, which is of the iteration before."""
    feedback = state.feedback.get(str(number)) if iteration > 0 else None
    return {} if feedback is None else {"mean": feedback.mean, "adversarial": feedback.adversarial}


def after_iteration(params: Params, spec: FederationSpec, state: State, iteration: int, uploads: Bag) -> State:
    """Return the state after an iteration: means of logits, and a step of the discriminator."""
    if iteration == params.tau:
        return replace(state, feedback={})
    ups = uploads.payloads(PublicLogits, "logits")
    means = targets(ups, params.target)
    gradients: dict[int, LogitGradients] = {}
    if params.adversarial > 0:
        state, gradients = train_discriminator(state, ups, params, spec)
    feedback = {str(each): Feedback(mean=means.get(each), adversarial=gradients.get(each)) for each in ups}
    return replace(state, feedback=feedback)


def clip(gradients: Floats, most: float) -> Floats:
    """Shorten each sample's gradient (..., k) to norm `most`; 0: leave it unchanged."""
    if most == 0:
        return gradients
    norms = np.sqrt((gradients.astype(np.float64) ** 2).sum(axis=-1, keepdims=True) + 1e-12)
    clipped: Floats = (gradients * np.minimum(1.0, most / norms)).astype(np.float32)
    return clipped


# -- the discriminator; its torch part is torch_fedal.py --------------------------------------------------------------


def first_discriminator(params: Params, spec: FederationSpec) -> tuple[Floats, ...]:
    """Return seeded weights and biases in turn, flattened.  Raises UsageError if the compute device is missing."""
    module = torch_part("torch_fedal", "FedAL's discriminator")
    module.check_discriminator_device(params.device)
    return tuple(
        layer.reshape(-1) for layer in module.initial_discriminator(spec.classes, params.max_devices, spec.seed)
    )


def train_discriminator(
    state: State, ups: Mapping[int, PublicLogits], params: Params, spec: FederationSpec
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
    outcome = module.ascent_step(before, logits, slots, params, spec.classes)
    now = outcome.state
    after = replace(state, discriminator=now.weights, moments=now.moments, steps=now.steps, mean_u=outcome.mean_u)
    gradients = clip(outcome.gradients, params.gradient_clip)
    return after, {
        number: LogitGradients(values=gradients[i], batch=up.batch) for i, (number, up) in enumerate(ups.items())
    }
