"""Dense nets of many devices as one: each layer a batched matrix product over a stack of weights.

One device's small layers cost a CPU more in calls than in arithmetic; ten of them stacked cost as many calls as one.
About ten at a time, so that their weights stay in the cache: more are slower again.  Nothing is shared between the
devices of a stack, so each one's gradient is what it would be alone, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from edge_sdk.models.torch_model import TorchModel

_SLOPES: Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda slope, out: slope * (out > 0),
    nn.Tanh: lambda slope, out: slope * (1 - out.square()),
    nn.Sigmoid: lambda slope, out: slope * out * (1 - out),
    nn.Identity: lambda slope, _out: slope,
}
"""Layers that work number by number: the slope at their input, from that at their output and the output."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a forward pass of a stack gave; rows beyond a device's own mini-batch are padding."""

    logits: Tensor  # (c, b, k)
    features: Tensor  # (c, b, d)
    given: Sequence[Tensor]
    """What each layer was given."""


Change: TypeAlias = Callable[[int, Tensor, Tensor | None], None]
"""(place of a weight, slopes, inputs): its slope is the batched product of the two, or the first where there is one."""


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

    @torch.no_grad()
    def outcome(self, x: Tensor, count: int) -> Outcome:
        """X (count, b, ...) or (1, b, ...), the same for all, through the nets of the first devices."""
        left = iter(self.weights)
        given: list[Tensor] = []
        for layer in self._layers:
            given.append(x)
            if isinstance(layer, nn.Linear):
                given[-1] = x = x.expand(count, *x.shape[1:])
                weight = next(left)[:count].mT  # (c, inputs, outputs)
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(left)[:count, None], x, weight)
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(*x.shape[:2], prod(x.shape[2:]))
            else:
                x = layer(x)
        return Outcome(x, given[-1], given)

    @torch.no_grad()
    def go_back(self, outcome: Outcome, logits: Tensor, features: Tensor | None, change: Change) -> None:
        """From slopes at the logits and at the features to those of the weights, which `change` is given one by one.

        Written out: autograd would take as long as the arithmetic.  A weight may be changed as soon as it is given.
        """
        at, slope = len(self.weights), logits
        first = next(i for i, layer in enumerate(self._layers) if isinstance(layer, nn.Linear))
        for i in range(len(self._layers) - 1, first - 1, -1):
            layer, given = self._layers[i], outcome.given[i]
            if not isinstance(layer, nn.Linear):
                slope = _SLOPES[type(layer)](slope, outcome.given[i + 1])
                continue
            at -= 1 if layer.bias is None else 2
            below = torch.bmm(slope, self.weights[at][: len(slope)]) if i > first else slope
            change(at, slope.mT, given)
            if layer.bias is not None:
                change(at + 1, slope.sum(dim=1), None)
            slope = below if features is None or i < len(self._layers) - 1 else below + features

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
        and all(type(layer) in (nn.Linear, *_SLOPES) or _flattens(layer) for layer in layers)
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
