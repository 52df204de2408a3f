"""CReFF's training on the coordinator: federated features that match gradients, and a last layer trained on them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.torch_nets.torch_device import one_thread

_LEAST = 1e-6
"""Added to products of norms, so that a gradient of zero has a cosine."""


def gradient_of(features: Tensor, label: int, layer: Tensor) -> Tensor:
    """Return the mean gradient of CE(label, W h + b) at the layer: features (M, d), layer (k, d + 1) -> (k, d + 1)."""
    errors = nnf.softmax(nnf.linear(features, layer[:, :-1], layer[:, -1]), dim=1)  # (M, k)
    errors = errors - nnf.one_hot(torch.tensor(label), len(layer)).to(errors.dtype)
    return torch.cat([errors.T @ features, errors.sum(dim=0)[:, None]], dim=1) / len(features)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of 1 - cosine over the rows of dW, and of db: both gradients (k, d + 1), bias last."""
    rows = (1 - _cosine(one[:, :-1], other[:, :-1])).sum()
    return rows + 1 - _cosine(one[:, -1], other[:, -1])


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    found: Tensor = (one * other).sum(dim=-1) / (one.norm(dim=-1) * other.norm(dim=-1) + _LEAST)
    return found


@one_thread()
def matched(features: Floats, layer: Floats, classes: Ints, gradients: Floats, *, steps: int, rate: float) -> Floats:
    """Return the features after steps of SGD that bring their gradients at the layer to the given ones.

    features (k, M, d); layer (k, d + 1); classes (m,), gradients (m, k, d + 1).  Other classes keep their features.
    """
    found = torch.tensor(features, requires_grad=True)
    at, wanted = torch.tensor(layer), torch.tensor(gradients)
    for _ in range(steps):
        apart = [
            distance(gradient_of(found[label], label, at), each)
            for label, each in zip(classes.tolist(), wanted, strict=True)
        ]
        loss = torch.stack(apart).sum()
        (slope,) = torch.autograd.grad(loss, [found])
        with torch.no_grad():
            found.sub_(slope, alpha=rate)
    out: Floats = found.detach().numpy()
    return out


@one_thread()
def retrained(
    layer: Floats, features: Floats, *, epochs: int, rate: float, batch: int, rng: np.random.Generator
) -> Floats:
    """Train a linear layer (k, d + 1) by SGD on features (k, M, d), which are labelled by their first axis."""
    classes, per_class, width = features.shape
    x = torch.tensor(features.reshape(-1, width))
    y = torch.arange(classes).repeat_interleave(per_class)
    at = torch.tensor(layer)
    for _ in range(epochs):
        order = torch.tensor(rng.permutation(len(y)))
        for index in torch.split(order, batch):
            h = x[index]
            errors = nnf.softmax(nnf.linear(h, at[:, :-1], at[:, -1]), dim=1)
            errors[torch.arange(len(index)), y[index]] -= 1
            at[:, :-1].addmm_(errors.T, h, alpha=-rate / len(index))
            at[:, -1].sub_(errors.sum(dim=0), alpha=rate / len(index))
    out: Floats = at.numpy()
    return out
