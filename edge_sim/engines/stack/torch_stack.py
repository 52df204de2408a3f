"""Stacks: the models of several devices of one architecture, computed as one; the interfaces of both ways to do it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from edge_sdk.device.workbench import Workbench
from edge_sdk.methods.requests import Private
from edge_sdk.models.torch_model import TorchModel

PRIVATE = Private(np.empty((0, 0), np.int64))
"""The source of all private samples of a device, without mini-batches."""


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
        """models: with the same Stacking.key, on one torch device; weights that do not lie side by side are copied."""
        self._models = models
        views = [_as_one_view(each) for each in zip(*(model.trained for model in models), strict=True)]
        self._copied = any(view is None for view in views)
        self.weights = [view for view in views if view is not None]
        if self._copied:
            with torch.no_grad():
                self.weights = [torch.stack(each) for each in zip(*(model.trained for model in models), strict=True)]
        self.device = self.weights[0].device

    @abstractmethod
    def forward(self, x: Tensor, count: int) -> StackOutput:
        """Pass x through the nets of the first `count` devices; x: (count, b, ...), or (1, b, ...) for all devices."""

    @abstractmethod
    def backward(self, output: StackOutput, logits: Tensor, features: Tensor | None, apply: ApplyGradient) -> None:
        """Call `apply` with the gradient of each weight; logits (c, b, k), features (c, b, d): gradients there."""

    @torch.no_grad()
    def write(self) -> None:
        """Copy the weights back to the models, unless the stack is a view of them."""
        if not self._copied:
            return
        for at, model in enumerate(self._models):
            for parameter, stacked in zip(model.trained, self.weights, strict=True):
                parameter.copy_(stacked[at])


def _as_one_view(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return equal tensors at equal distances in one piece of memory as one view (c, ...); None: they lie otherwise."""
    first = tensors[0].detach()
    places = [each.data_ptr() for each in tensors]
    gaps = {after - before for before, after in pairwise(places)} or {first.nbytes}
    pieces = {each.untyped_storage().data_ptr() for each in tensors}
    if len(gaps) > 1 or len(pieces) > 1 or min(gaps) < first.nbytes or min(gaps) % first.element_size():
        return None
    stride = min(gaps) // first.element_size()
    return first.as_strided((len(tensors), *first.shape), (stride, *first.stride()), first.storage_offset())


class Stacking(ABC):
    """A way to build stacks."""

    max_devices: int
    """Largest number of devices in a stack."""

    @abstractmethod
    def key(self, bench: Workbench) -> str:
        """Return a key that is equal for nets that can be stacked together; empty: this net cannot be stacked."""

    @abstractmethod
    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """Build a stack of models with the same key; train: in training mode."""
