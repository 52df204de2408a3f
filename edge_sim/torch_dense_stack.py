"""Dense nets of many devices as one: each layer a batched matrix product over a stack of weights.

One device's small layers cost a CPU more in calls than in arithmetic; ten of them stacked cost as many calls as one.
Nothing is shared between the devices of a stack, so each one's gradient is what it would be alone, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench
from edge_sim.torch_stack import ApplyGradient, Stack, Stacking, StackOutput

_SLOPES: Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda slope, out: slope * (out > 0),
    nn.Tanh: lambda slope, out: slope * (1 - out.square()),
    nn.Sigmoid: lambda slope, out: slope * out * (1 - out),
    nn.Identity: lambda slope, _out: slope,
}
"""Layers that work number by number: the slope at their input, from that at their output and the output."""


class DenseStack(Stack):
    """Of nets that are dense layers one after the other."""

    def __init__(self, models: Sequence[TorchModel]) -> None:
        """See Stack."""
        super().__init__(models)
        self._layers = _layers(models[0].net)

    @torch.no_grad()
    def outcome(self, x: Tensor, count: int) -> StackOutput:
        """See Stack."""
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
        return StackOutput(x, given[-1], given)

    @torch.no_grad()
    def go_back(self, outcome: StackOutput, logits: Tensor, features: Tensor | None, change: ApplyGradient) -> None:
        """See Stack.  Written out: autograd would take as long as the arithmetic.

        A weight may be changed as soon as it is given.
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


class DenseStacking(Stacking):
    """Stacks dense nets."""

    at_a_time = 10
    """So that their weights stay in a core's cache: more are slower again."""

    def words(self, bench: Workbench) -> str:
        """See Stacking."""
        return str(bench.model.net) if isinstance(bench.model, TorchModel) and _stacks(bench.model) else ""

    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:  # noqa: ARG002  # no such layer has modes
        """See Stacking."""
        return DenseStack(models)


def _stacks(model: TorchModel) -> bool:
    """Whether a model is a dense net of layers that stack, all of it trained, its last layer nn.Linear."""
    if type(model.net) is not nn.Sequential:
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
