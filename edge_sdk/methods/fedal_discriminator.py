"""FedAL's discriminator on the coordinator: its parameters and state, and the gradients that devices get.

The torch part is torch_fedal.py; the method is in fedal.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import RunFailed
from edge_sdk.methods.base import torch_part
from edge_sdk.methods.params import Range
from edge_sdk.objectives import softmax
from edge_sdk.objectives.schedule import Schedule
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.schema import Count, Packed, Tensor, wire

Layer = Annotated[NDArray[np.float32], Tensor(("f4",), 1)]


@dataclass(frozen=True, kw_only=True)
class DiscriminatorParams:
    """The parameters of the discriminator and of what its gradients do."""

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
    gradient_clip: Annotated[float, Range(0, 1e6)] = 1.0
    """Largest norm of a sample's adversarial gradient; 0, as in the paper: no clipping."""
    held_ratio: Annotated[float, Range(0, 1000)] = 0.0
    """The ratio at which the norm of a device's adversarial gradient on a batch, with its weight, is held to that of
    its KL gradient; 0, as in the paper: it is what it is."""
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
    params: DiscriminatorParams,
    temperature: float,
) -> dict[int, LogitGradients]:
    """Return adversarial gradients whose norm on a batch is `held_ratio` times that of the KL gradient.

    A device without a target, or without any gradient, keeps what it has.
    """
    after = dict(gradients)
    for number, gradient in gradients.items() if params.held_ratio else ():
        target = means.get(number)
        norm = params.adversarial * float(np.linalg.norm(gradient.values))
        if target is not None and norm > 0:
            wanted = params.held_ratio * float(np.linalg.norm(kl_gradient(ups[number], target, temperature)))
            values = (gradient.values * (wanted / norm)).astype(np.float32)
            after[number] = replace(gradient, values=values)
    return after


def kl_gradient(own: PublicLogits, target: PublicLogits, temperature: float) -> Floats:
    """Return the slope of KL(softmax(target / E) || softmax(own / E)) at each sample's own logits: (b, k)."""
    ours, theirs = (softmax(each.values.astype(np.float32), temperature) for each in (own, target))
    out: Floats = (ours - theirs) / np.float32(temperature)
    return out


def adversarial(params: object) -> TypeGuard[DiscriminatorParams]:
    """Return whether there is a discriminator."""
    return isinstance(params, DiscriminatorParams) and params.adversarial > 0


def first_discriminator(params: DiscriminatorParams, spec: FederationSpec) -> tuple[Floats, ...]:
    """Return seeded weights and biases in turn, flattened.  Raises UsageError if the compute device is missing."""
    module = torch_part("torch_fedal", "FedAL's discriminator")
    module.check_device(params.device)
    return tuple(
        layer.reshape(-1)
        for layer in module.initial_discriminator(spec.classes, params.max_devices, spec.seed, params.hidden)
    )


def discriminated(
    state: State, ups: Mapping[int, PublicLogits], params: DiscriminatorParams, spec: FederationSpec, round_: int
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
