"""Nets that no user wants: without memory, with branches, or wrong in a way that a trial with one sample does not show."""

from __future__ import annotations

import sys

from torch import Tensor, nn

from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_model import TorchModel


class Greedy(nn.Module):
    """Says what torch does where an array does not fit in memory."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x) > 1  # one sample is a trial
        if self.passes > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 GB")
        return x


class Branching(nn.Module):
    """Computes one thing or another, as its samples tell."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if float(x.detach().sum()) > 0 else x


class Failing(nn.Module):
    """Raises an error of two lines for mini-batches."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:  # one sample is a trial
            raise ValueError("my layer\nhas had enough")
        return x


class Exiting(nn.Module):
    """Ends the process for that many samples or more."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        if len(x) >= self.least:
            sys.exit(3)
        return x


class Narrowing(nn.Module):
    """Gives mini-batches a width that the next layer does not take."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3] if len(x) > 1 else x


class Endless(nn.Module):
    """Gives numbers that are not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 0.0


class Moving(nn.Linear):
    """Gives its weights other memory in every pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data.clone()
        return super().forward(x)


def greedy(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Greedy(), classes, input_shape, seed)


def branching(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Branching(), classes, input_shape, seed)


def failing(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Failing(), classes, input_shape, seed)


def exiting(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Exiting(2), classes, input_shape, seed)  # one sample is a trial


def exiting_when_tried(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Exiting(1), classes, input_shape, seed)


def exiting_when_begun(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return TorchModel(_with(Exiting(2), classes, input_shape, seed).net.append(Exiting(1)), classes)


def narrowing(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Narrowing(), classes, input_shape, seed)


def endless(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    return _with(Endless(), classes, input_shape, seed)


def moving(classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    with seeded(seed):
        layer = Moving(6, 6)
    return _with(layer, classes, input_shape, seed)


def _with(layer: nn.Module, classes: int, input_shape: tuple[int, int, int], seed: int) -> TorchModel:
    channels, height, width = input_shape
    with seeded(seed):
        net = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 6), layer, nn.Linear(6, classes))
        return TorchModel(net, classes, input_shape=input_shape)
