"""FedAL's discriminator, which predicts the device that made a prediction.

h: K -> 32 -> 265 -> N with ReLU and an N-way output (the paper gives two layers of 32 and 265 neurons; the activation
and the output layer are our reading), input softmax(f / E_D), U_n = log softmax(h(p_n))_n.  There are spare outputs for
devices that may join; the softmax covers the outputs of devices seen so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.methods.fedal import Params
from edge_sdk.models.torch_nets import torch_device
from edge_sdk.models.torch_nets.torch_device import one_thread

HIDDEN = (32, 265)
_ADAM_DECAY = (0.9, 0.999)
_ADAM_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscriminatorTraining:
    """How the discriminator learns."""

    temperature: float
    """E_D, the temperature of the input."""
    rate: float
    """eta_d, the learning rate."""
    optimiser: str
    device: str


def check_discriminator_device(name: str) -> None:
    """Raise UsageError unless this machine has the device: cpu or cuda:N."""
    torch_device.check_device(name, "method.device")


def discriminator_shapes(classes: int, devices: int, hidden: tuple[int, ...] = HIDDEN) -> list[tuple[int, ...]]:
    """Return the shapes of weights and biases in turn: (out, in), (out,), ..."""
    sizes = zip((classes, *hidden), (*hidden, devices), strict=True)
    return [shape for inputs, outputs in sizes for shape in ((outputs, inputs), (outputs,))]


def initial_discriminator(
    classes: int, devices: int, seed: int, hidden: tuple[int, ...] = HIDDEN
) -> tuple[Floats, ...]:
    """Return seeded weights and biases in turn, uniform in +-1/sqrt(inputs)."""
    rng = np.random.default_rng([seed, 0xD15C])
    shapes = discriminator_shapes(classes, devices, hidden)
    inputs = [shape[1] for shape in shapes[::2] for _ in range(2)]
    bounds = 1 / np.sqrt(inputs)
    return tuple(rng.uniform(-b, b, shape).astype(np.float32) for b, shape in zip(bounds, shapes, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class DiscriminatorState:
    """The discriminator between two iterations."""

    weights: tuple[Floats, ...]
    """The weights and biases in turn."""
    moments: tuple[Floats, ...] = ()
    """Adam's first and then second moments; empty before its first step, and for sgd."""
    steps: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of one iteration: the new state, the devices' gradients, and how well it distinguishes the devices."""

    state: DiscriminatorState
    gradients: Floats  # (n, b, k): d U_n / d f_n, per sample, divided by nothing
    mean_u: float
    """The mean of U_n after the step; log(1/N) is chance level."""


@one_thread()
def iterate(
    state: DiscriminatorState,
    logits: Floats,
    slots: NDArray[np.int64],
    how: DiscriminatorTraining,
    seen: NDArray[np.int64] | None = None,
) -> Outcome:
    """Ascend the mean of U_n by one step, then differentiate U_n at the new weights with respect to the logits.

    logits (n, b, k): one contributor a row; slots (n,): its output; seen: the outputs in use, ascending, or None for
    all.
    """
    device = torch.device(how.device)
    layers = [torch.tensor(w, device=device, requires_grad=True) for w in state.weights]
    f = torch.tensor(logits, device=device)
    seen = np.arange(len(state.weights[-1])) if seen is None else seen
    target = torch.tensor(np.searchsorted(seen, slots), device=device)
    outputs = torch.tensor(seen, device=device)
    loss = -_u(layers, f, target, how.temperature, outputs).mean()
    slopes = torch.autograd.grad(loss, layers)
    updated, kept = _step(layers, slopes, state.moments, state.steps + 1, how)
    f = f.requires_grad_()
    after = _u(updated, f, target, how.temperature, outputs)  # (n, b)
    (gradient,) = torch.autograd.grad(after.sum(), f)
    new = DiscriminatorState(tuple(_numpy(w) for w in updated), tuple(_numpy(m) for m in kept), state.steps + 1)
    return Outcome(new, _numpy(gradient), float(after.mean().item()))


def ascent_step(
    flat: DiscriminatorState,
    logits: Floats,
    *,
    slots: NDArray[np.int64],
    seen: NDArray[np.int64],
    params: Params,
    rate: float,
) -> Outcome:
    """Run `iterate` on a discriminator with flat layers, as the coordinator keeps them."""
    how = DiscriminatorTraining(
        temperature=params.discriminator_temperature,
        rate=rate,
        optimiser=params.discriminator_optimiser,
        device=params.device,
    )
    outcome = iterate(_shaped(flat, logits.shape[-1], params), logits, slots, how, seen)
    weights, moments = (
        tuple(layer.reshape(-1) for layer in layers) for layers in (outcome.state.weights, outcome.state.moments)
    )
    return replace(outcome, state=DiscriminatorState(weights, moments, outcome.state.steps))


@one_thread()
@torch.inference_mode()
def accuracy_of(
    flat: DiscriminatorState, logits: Floats, *, slots: NDArray[np.int64], seen: NDArray[np.int64], params: Params
) -> float:
    """Return the share of samples whose device the discriminator names among those in use; logits (n, b, k)."""
    layers = [torch.tensor(w) for w in _shaped(flat, logits.shape[-1], params).weights]
    scores = _scores(layers, torch.tensor(logits), params.discriminator_temperature, torch.tensor(seen))
    named = scores.argmax(dim=-1).numpy()  # (n, b)
    return float((named == np.searchsorted(seen, slots)[:, None]).mean())


def _shaped(flat: DiscriminatorState, classes: int, params: Params) -> DiscriminatorState:
    """Return a discriminator with layers in their shapes."""
    shapes = discriminator_shapes(classes, params.max_devices, params.hidden)
    weights, moments = (
        tuple(layer.reshape(shape) for layer, shape in zip(layers, (shapes + shapes)[: len(layers)], strict=True))
        for layers in (flat.weights, flat.moments)
    )
    return DiscriminatorState(weights, moments, flat.steps)


def _u(
    layers: Sequence[torch.Tensor],
    f: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    outputs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return U_n for every contributor and sample: (n, b).

    outputs: those in use, None for all; targets (n,): the places of the contributors among them.
    """
    log_shares = torch.log_softmax(_scores(layers, f, temperature, outputs), dim=-1)  # (n, b, outputs)
    return log_shares.gather(-1, targets[:, None, None].expand(*f.shape[:2], 1)).squeeze(-1)


def _scores(
    layers: Sequence[torch.Tensor], f: torch.Tensor, temperature: float, outputs: torch.Tensor | None
) -> torch.Tensor:
    """Return h(softmax(f / E_D)) for every contributor and sample: (n, b, outputs)."""
    hidden = torch.softmax(f / temperature, dim=-1)
    for i in range(0, len(layers), 2):
        hidden = torch.nn.functional.linear(hidden, layers[i], layers[i + 1])
        if i + 2 < len(layers):
            hidden = torch.relu(hidden)
    return hidden if outputs is None else hidden[..., outputs]


def _step(
    layers: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    moments: Sequence[Floats],
    step: int,
    how: DiscriminatorTraining,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Take one step of plain SGD (the paper's Algorithm 1) or of Adam."""
    with torch.no_grad():
        if how.optimiser == "sgd":
            return [w - how.rate * slope for w, slope in zip(layers, slopes, strict=True)], []
        first, second = _moments(layers, moments)
        first = [_ADAM_DECAY[0] * m + (1 - _ADAM_DECAY[0]) * g for m, g in zip(first, slopes, strict=True)]
        second = [_ADAM_DECAY[1] * v + (1 - _ADAM_DECAY[1]) * g * g for v, g in zip(second, slopes, strict=True)]
        bias1, bias2 = 1 - _ADAM_DECAY[0] ** step, 1 - _ADAM_DECAY[1] ** step
        updated = [
            w - how.rate * (m / bias1) / ((v / bias2).sqrt() + _ADAM_EPSILON)
            for w, m, v in zip(layers, first, second, strict=True)
        ]
        return updated, [*first, *second]


def _moments(
    layers: Sequence[torch.Tensor], moments: Sequence[Floats]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    if not moments:
        return [torch.zeros_like(w) for w in layers], [torch.zeros_like(w) for w in layers]
    tensors = [torch.tensor(m, device=layers[0].device) for m in moments]
    return tensors[: len(layers)], tensors[len(layers) :]


def _numpy(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().cpu().numpy()
    return array
