"""The workloads that are timed with torch; their layers differ in operations and in memory traffic."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from torch import nn

from edge_sdk.models.base import Model
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.tools.measure.fit import CLASSES, Workload


def torch_loads() -> tuple[Workload, ...]:
    """Return workloads of small and large networks, dense and convolutional."""
    return (
        _load("a dense net of 64-64", (1, 8, 8), 32, lambda: _dense(64, 64)),
        _load("a dense net of 784-256-256", (1, 28, 28), 32, lambda: _dense(784, 256, 256)),
        _load("a dense net of 784-2000-500", (1, 28, 28), 32, lambda: _dense(784, 2000, 500)),
        _load("two convolutions (6, 16) and two layers", (1, 28, 28), 32, lambda: _lenet(6, 16)),
        _load("two convolutions (32, 64) and two layers", (1, 28, 28), 32, lambda: _lenet(32, 64)),
        _load("five convolutions of 16", (1, 28, 28), 32, lambda: _convolutions(1, 16, 5)),
        _load("five convolutions of 64", (3, 16, 16), 32, lambda: _convolutions(3, 64, 5)),
    )


def _load(name: str, shape: tuple[int, int, int], batch: int, net: Callable[[], nn.Module]) -> Workload:
    def make() -> Model:
        return TorchModel(net(), CLASSES, input_shape=shape)

    return name, make, shape, batch


def _dense(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


def _lenet(first: int, second: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(25 * second, 120),
        nn.ReLU(),
        nn.Linear(120, CLASSES),
    )


def _convolutions(channels: int, width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))
