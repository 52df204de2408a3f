"""FedTGP's net, which gives the prototypes: P_c = FC2(ReLU(FC1(E_c))), and its training.

Zhang et al., "FedTGP", AAAI 2024 (arXiv:2401.03230), equations 3 to 6.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

from edge_sdk.arrays import Floats, Ints
from edge_sdk.models.torch_nets.torch_device import one_thread

Net: TypeAlias = tuple[Floats, Floats, Floats]
"""E (k, d), FC1 (s, d + 1) and FC2 (d, s + 1), each layer with its bias as last column."""
_LEAST = 1e-12
"""The least squared distance: the square root has no slope at 0."""


@one_thread()
def trained_net(
    net: Net, x: Floats, y: Ints, *, epochs: int, rate: float, batch: int, margin: float, rng: np.random.Generator
) -> Net:
    """Train all of the net by SGD on rows x (n, d) of classes y (n,); each epoch has another order."""
    layers = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in net]
    rows, labels = torch.tensor(x, dtype=torch.float64), torch.tensor(y)
    for _ in range(epochs):
        for part in torch.split(torch.tensor(rng.permutation(len(y))), batch):
            loss = separation(layers, rows[part], labels[part], margin)
            slopes = torch.autograd.grad(loss, layers)
            with torch.no_grad():
                for layer, slope in zip(layers, slopes, strict=True):
                    layer.sub_(slope, alpha=rate)
    embedding, first, second = (layer.detach().numpy().astype(np.float32) for layer in layers)
    return embedding, first, second


@one_thread()
@torch.inference_mode()
def prototypes_of(net: Net) -> Floats:
    """Return the prototypes of all classes: (k, d)."""
    found: Floats = _prototypes([torch.tensor(each) for each in net]).numpy()
    return found


@one_thread()
@torch.inference_mode()
def separation_loss(net: Net, x: Floats, y: Ints, margin: float) -> float:
    """Return the net's loss on all rows of a round."""
    layers = [torch.tensor(each, dtype=torch.float64) for each in net]
    return float(separation(layers, torch.tensor(x, dtype=torch.float64), torch.tensor(y), margin))


def separation(net: list[Tensor], x: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return CE(y, softmax(-(D + margin onehot(y)))), D the distances of x (n, d) to all prototypes (n, k)."""
    squares = (x[:, None] - _prototypes(net)[None]).square().sum(dim=-1)  # without cancelling, so never negative
    distances = squares.clamp_min(_LEAST).sqrt()
    return nnf.cross_entropy(-(distances + margin * nnf.one_hot(y, len(net[0]))), y)


def _prototypes(net: list[Tensor]) -> Tensor:
    embedding, first, second = net
    hidden = nnf.relu(nnf.linear(embedding, first[:, :-1], first[:, -1]))
    return nnf.linear(hidden, second[:, :-1], second[:, -1])
