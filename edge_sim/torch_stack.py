"""Dense nets of many devices as one: each layer a batched matrix product over a stack of weights.

One device's small layers cost a CPU more in calls than in arithmetic; ten of them stacked cost as many calls as one.
About ten at a time, so that their weights stay in the cache: more are slower again.  Nothing is shared between the
devices of a stack, so each one's gradient is what it would be alone, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from edge_sdk.models.torch_model import TorchModel

_PLAIN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Identity)
"""Layers that work number by number: on a stack as on one device."""
Layer: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a forward pass of a stack gave; rows beyond a device's own mini-batch are padding."""

    logits: Tensor  # (c, b, k)
    features: Tensor  # (c, b, d)


class Stack:
    """The weights of several devices of one architecture, to pass samples through and to step; `write` puts them back.

    Every other thing of a model, its buffers and its moments, is its own and not touched.
    """

    def __init__(self, models: Sequence[TorchModel]) -> None:
        """models: of equal nets that stack (see `stacks`)."""
        self._models = models
        views = [_side_by_side(each) for each in zip(*(model.trained for model in models), strict=True)]
        self._copied = any(view is None for view in views)
        self.weights = [view for view in views if view is not None]
        if self._copied:
            with torch.no_grad():
                self.weights = [torch.stack(each) for each in zip(*(model.trained for model in models), strict=True)]
        self._layers = _layers(models[0].net)

    def first(self, count: int) -> list[Tensor]:
        """Views of the weights of the first devices, to differentiate by: (c, ...) each."""
        return [each[:count].requires_grad_() for each in self.weights]

    def outcome(self, weights: Sequence[Tensor], x: Tensor) -> Outcome:
        """X (c, b, ...) or (1, b, ...), the same for all, through the nets."""
        left = iter(weights)
        count, features = len(weights[0]), x
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                features = x.expand(count, *x.shape[1:])
                weight = next(left)
                product = torch.bmm(features, weight.mT)
                x = product if layer.bias is None else product + next(left)[:, None]
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(*x.shape[:2], prod(x.shape[2:]))
            else:
                x = layer(x)
        return Outcome(x, features)

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


def stacks(model: object) -> bool:
    """Whether a model is a dense net of layers that stack, all of it trained, its last layer nn.Linear."""
    if not isinstance(model, TorchModel) or type(model.net) is not nn.Sequential:
        return False
    layers = _layers(model.net)
    last = layers[-1] if layers else None
    return (
        type(last) is nn.Linear
        and all(type(layer) in (nn.Linear, *_PLAIN) or _flattens(layer) for layer in layers)
        and all(p.requires_grad for p in model.net.parameters())
        and model.taps_last_input
    )


def _layers(net: nn.Module) -> list[nn.Module]:
    """Of an nn.Sequential, those of any within it in their place."""
    return [
        layer for child in net.children() for layer in (_layers(child) if type(child) is nn.Sequential else [child])
    ]


def _flattens(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
