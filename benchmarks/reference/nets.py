"""The three nets of the reference, for fleets that name them as MODULE:FACTORY: features of 64, and a linear layer."""

from __future__ import annotations

import torch
from torch import nn


def a(classes: int, _input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """Two convolutions."""
    return _two_convolutions(classes, 64, seed)


def a_of_32(classes: int, _input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """The same with 32 features: FedMRL's small model."""
    return _two_convolutions(classes, 32, seed)


def b(classes: int, _input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """One convolution."""
    torch.manual_seed(seed)
    front = (nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*front, nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, classes))


def c(classes: int, _input_shape: tuple[int, ...], seed: int) -> nn.Module:
    """No convolution."""
    torch.manual_seed(seed)
    dense = (nn.Flatten(), nn.Linear(784, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
    return nn.Sequential(*dense, nn.Linear(64, classes))


def _two_convolutions(classes: int, features: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    first = (nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(256, features), nn.ReLU(), nn.Linear(features, classes))
