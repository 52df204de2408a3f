"""FedGen's generator, which makes features of a given label from noise.

G: (noise, one-hot label) -> hidden -> d with one ReLU.  In each round, a new Adam minimises

    CE(y, head(G(e, y))) + eta exp(-mean over pairs of |e - e'|^2 |G(e, y) - G(e', y')|)

head: the mean of the devices' last layers, which gives the mean of their logits (Zhu et al. 2021, equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as nnf

from edge_sdk.arrays import Floats
from edge_sdk.models.torch_nets.torch_device import one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorTraining:
    """How the generator learns in one round."""

    steps: int
    batch: int
    rate: float
    diversity: float


def initial_generator(shapes: list[tuple[int, ...]], rng: np.random.Generator) -> tuple[Floats, ...]:
    """Return weights and biases in turn, uniform in +-1/sqrt(inputs)."""
    inputs = [shape[1] for shape in shapes[::2] for _ in range(2)]
    bounds = 1 / np.sqrt(inputs)
    return tuple(rng.uniform(-b, b, shape).astype(np.float32) for b, shape in zip(bounds, shapes, strict=True))


@one_thread()
def trained(
    weights: tuple[Floats, ...],
    header: Floats,
    shares: NDArray[np.float64],
    how: GeneratorTraining,
    rng: np.random.Generator,
) -> tuple[Floats, ...]:
    """Train for `how.steps` steps.  header (k, d + 1), bias last; shares (k,): frequency of each label."""
    layers = [torch.tensor(each, requires_grad=True) for each in weights]
    head = torch.tensor(header)
    optimiser = torch.optim.Adam(layers, lr=how.rate)
    for _ in range(how.steps):
        labels = torch.tensor(rng.choice(len(shares), how.batch, p=shares))
        noise = _noise(rng, how.batch, layers, len(shares))
        optimiser.zero_grad()
        _loss(layers, head, noise, labels, how.diversity).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimiser.step()
    return tuple(layer.detach().numpy() for layer in layers)


@one_thread()
@torch.inference_mode()
def generator_figures(
    weights: tuple[Floats, ...],
    header: Floats,
    shares: NDArray[np.float64],
    how: GeneratorTraining,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return `generator_cross_entropy`, the loss without diversity on a new batch, and `generator_sameness`.

    A cross-entropy near log k says that the head does not recognise the generated features; `sameness` is 1 if they do
    not depend on the noise.
    """
    layers, head = [torch.tensor(each) for each in weights], torch.tensor(header)
    labels = torch.tensor(rng.choice(len(shares), how.batch, p=shares))
    noise = _noise(rng, how.batch, layers, len(shares))
    features = _generate(layers, noise, labels)
    fits = nnf.cross_entropy(nnf.linear(features, head[:, :-1], head[:, -1]), labels)
    return {"generator_cross_entropy": fits.item(), "generator_sameness": sameness(noise, features).item()}


@one_thread()
@torch.inference_mode()
def made(
    weights: tuple[Floats, ...], classes: NDArray[np.int64], times: int, k: int, rng: np.random.Generator
) -> Floats:
    """Generate features of each class: (m, times, d)."""
    layers = [torch.tensor(each) for each in weights]
    labels = torch.tensor(np.repeat(classes, times))
    out: Floats = _generate(layers, _noise(rng, len(labels), layers, k), labels).numpy()
    return out.reshape(len(classes), times, -1)


def _noise(rng: np.random.Generator, count: int, layers: list[torch.Tensor], classes: int) -> torch.Tensor:
    return torch.tensor(rng.normal(size=(count, layers[0].shape[1] - classes)).astype(np.float32))


def _generate(layers: list[torch.Tensor], noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Generate features from noise (b, z) and labels (b,): (b, d)."""
    classes = layers[0].shape[1] - noise.shape[1]
    seen = torch.cat([noise, nnf.one_hot(labels, classes).to(noise.dtype)], dim=1)
    return nnf.linear(torch.relu(nnf.linear(seen, layers[0], layers[1])), layers[2], layers[3])


def _loss(
    layers: list[torch.Tensor], head: torch.Tensor, noise: torch.Tensor, labels: torch.Tensor, diversity: float
) -> torch.Tensor:
    features = _generate(layers, noise, labels)  # (b, d)
    fits = nnf.cross_entropy(nnf.linear(features, head[:, :-1], head[:, -1]), labels)
    return fits + diversity * sameness(noise, features)


def sameness(noise: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return exp(-mean over all pairs of |e - e'|^2 / z times |f - f'| / d); 1 if noise does not change features."""
    apart = torch.cdist(features, features, p=1) / features.shape[1]  # (b, b)
    squares = torch.cdist(noise, noise).square() / noise.shape[1]  # (b, b)
    return torch.exp(-(squares * apart).mean())
