"""Stacks: models of several devices with one architecture, computed as one; interface of both implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Private
from edge_sdk.models.torch_nets.torch_model import TorchModel

PRIVATE = Private(np.empty((0, 0), np.int64))
"""All private samples of a device, without mini-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class StackOutput:
    """The result of a forward pass of c devices; rows beyond a device's own mini-batch are padding."""

    logits: Tensor  # (c, b, k)
    features: Tensor  # (c, b, d)
    saved: Sequence[Tensor]
    """Tensors that the backward pass needs."""


ApplyGradient: TypeAlias = Callable[[int, Tensor, Tensor | None], None]
"""(index of a weight, gradient, inputs): its gradient is the batched product of both, or the first without inputs."""


class Stack(ABC):
    """The weights of c devices of one architecture, each as one tensor (c, ...); `write` copies them back.

    Buffers and moments of the models are not part of a stack.
    """

    def __init__(self, models: Sequence[TorchModel]) -> None:
        """models: with the same Stacking.key, on one torch device; weights that are not evenly spaced are copied."""
        self._models = models
        views = _as_views([model.trained for model in models])
        self._copied = views is None
        if views is None:
            with torch.no_grad():
                views = [torch.stack(each) for each in zip(*(model.trained for model in models), strict=True)]
        self.weights = views
        self.device = self.weights[0].device

    @abstractmethod
    def forward(self, x: Tensor, count: int) -> StackOutput:
        """Pass x through the nets of the first `count` devices; x: (count, b, ...), or (1, b, ...) for all devices."""

    @abstractmethod
    def backward(self, output: StackOutput, logits: Tensor, features: Tensor | None, apply: ApplyGradient) -> None:
        """Call `apply` with the gradient of each weight; logits (c, b, k), features (c, b, d): gradients there."""

    @torch.no_grad()
    def finite(self) -> list[bool]:
        """Return for each device whether all weights are surely finite; False if their sum is not finite."""
        sums = sum(each.flatten(1).sum(dim=1) for each in self.weights)  # NaN and Inf propagate into a sum
        found: list[bool] = torch.isfinite(torch.as_tensor(sums)).tolist()
        return found

    @torch.no_grad()
    def write(self) -> None:
        """Copy the weights back to the models, unless the stack is a view of them."""
        if not self._copied:
            return
        for at, model in enumerate(self._models):
            for parameter, stacked in zip(model.trained, self.weights, strict=True):
                parameter.copy_(stacked[at])


def _as_views(models: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
    """Return the weights of models, each as one view (c, ...), or None if they are not evenly spaced in memory."""
    first, last = models[0], models[-1]
    places = np.array([[weight.data_ptr() for weight in each] for each in models])  # (c, weights)
    gaps = np.diff(places, axis=0) if len(models) > 1 else np.array([[weight.nbytes for weight in first]])
    apart = gaps[0].tolist()
    if (gaps != gaps[0]).any() or any(_piece(one) != _piece(other) for one, other in zip(first, last, strict=True)):
        return None
    if any(gap < each.nbytes or gap % each.element_size() for gap, each in zip(apart, first, strict=True)):
        return None
    return [_strided(each.detach(), len(models), gap) for each, gap in zip(first, apart, strict=True)]


def _piece(tensor: Tensor) -> int:
    """Return the start of the memory block of a tensor."""
    return tensor.untyped_storage().data_ptr()


def _strided(first: Tensor, count: int, gap_bytes: int) -> Tensor:
    """Return tensors at equal distances as one view; first: the first of them."""
    stride = gap_bytes // first.element_size()
    return first.as_strided((count, *first.shape), (stride, *first.stride()), first.storage_offset())


class Stacking(ABC):
    """A way to build stacks."""

    max_devices: int
    """Maximum number of devices in a stack."""

    @abstractmethod
    def key(self, bench: Workbench) -> str:
        """Return a key that is equal for nets that can be stacked together, or empty if this net cannot be stacked."""

    @abstractmethod
    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """Build a stack of models with the same key; train: in training mode."""
