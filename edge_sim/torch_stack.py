"""Devices of one architecture as one: their weights side by side, and what each way to compute on them offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from edge_sdk.methods.requests import Private
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench

PRIVATE = Private(np.empty((0, 0), np.int64))
"""All private samples, no batches of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a forward pass of a stack gave; rows beyond a device's own mini-batch are padding."""

    logits: Tensor  # (c, b, k)
    features: Tensor  # (c, b, d)
    given: Sequence[Tensor]
    """What the way back needs."""


Change: TypeAlias = Callable[[int, Tensor, Tensor | None], None]
"""(place of a weight, slopes, inputs): its slope is the batched product of the two, or the first where there is one."""


class Stack(ABC):
    """The weights of several devices of one architecture, to pass samples through and to step; `write` puts them back.

    Every other thing of a model, its buffers and its moments, is its own and not touched.
    """

    def __init__(self, models: Sequence[TorchModel]) -> None:
        """models: of equal nets that stack (see Stacking), all on one device."""
        self._models = models
        views = [_side_by_side(each) for each in zip(*(model.trained for model in models), strict=True)]
        self._copied = any(view is None for view in views)
        self.weights = [view for view in views if view is not None]
        if self._copied:
            with torch.no_grad():
                self.weights = [torch.stack(each) for each in zip(*(model.trained for model in models), strict=True)]
        self.device = self.weights[0].device

    @abstractmethod
    def outcome(self, x: Tensor, count: int) -> Outcome:
        """X (count, b, ...) or (1, b, ...), the same for all, through the nets of the first devices."""

    @abstractmethod
    def go_back(self, outcome: Outcome, logits: Tensor, features: Tensor | None, change: Change) -> None:
        """From slopes at the logits and at the features to those of the weights, which `change` is given one by one."""

    @torch.no_grad()
    def write(self) -> None:
        """Give each model its weights, if it does not have them anyway."""
        if not self._copied:
            return
        for at, model in enumerate(self._models):
            for parameter, stacked in zip(model.trained, self.weights, strict=True):
                parameter.copy_(stacked[at])


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """Equal tensors at equal distances in one piece of memory as one tensor (c, ...); None: they lie otherwise."""
    first = tensors[0].detach()
    places = [each.data_ptr() for each in tensors]
    gaps = {after - before for before, after in pairwise(places)} or {first.nbytes}
    pieces = {each.untyped_storage().data_ptr() for each in tensors}
    if len(gaps) > 1 or len(pieces) > 1 or min(gaps) < first.nbytes or min(gaps) % first.element_size():
        return None
    stride = min(gaps) // first.element_size()
    return first.as_strided((len(tensors), *first.shape), (stride, *first.stride()), first.storage_offset())


class Stacking(ABC):
    """A way to stack."""

    at_a_time: int
    """Devices in a stack, at most."""

    @abstractmethod
    def words(self, bench: Workbench) -> str:
        """A device's net in words, the same for all that stack; empty: it does not."""

    @abstractmethod
    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """Of models in the same words; train: in training mode."""
