"""Stacks of dense nets: each layer is a batched matrix product over the weights of all devices.

For small layers a CPU spends more on calls than on arithmetic, and ten stacked layers cost as many calls as
one.  The devices of a stack share nothing, so each has the same gradient as alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.stack.torch_stack import ApplyGradient, Stack, Stacking, StackOutput

_GRADIENTS: Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda gradient, out: torch.ops.aten.threshold_backward(gradient, out, 0),
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.Sigmoid: torch.ops.aten.sigmoid_backward,
    nn.Identity: lambda gradient, _out: gradient,
}
"""Element-wise layers: the gradient at their input, from the gradient at their output and the output."""


class DenseStack(Stack):
    """A stack of nets whose dense and element-wise layers follow one another."""

    def __init__(self, models: Sequence[TorchModel]) -> None:
        """Implement Stack."""
        super().__init__(models)
        self._layers = _layers(cast("nn.Sequential", models[0].net))

    @torch.no_grad()
    def forward(self, x: Tensor, count: int) -> StackOutput:
        """Implement Stack."""
        left = iter(self.weights)
        inputs: list[Tensor] = []
        for layer in self._layers:
            inputs.append(x)
            if isinstance(layer, nn.Linear):
                inputs[-1] = x = x.expand(count, *x.shape[1:])
                weight = next(left)[:count].mT  # (c, inputs, outputs)
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(left)[:count, None], x, weight)
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(*x.shape[:2], prod(x.shape[2:]))
            else:
                x = layer(x)
        return StackOutput(x, inputs[-1], inputs)

    @torch.no_grad()
    def backward(self, output: StackOutput, logits: Tensor, features: Tensor | None, apply: ApplyGradient) -> None:
        """Implement Stack without autograd, whose overhead would double the time.

        No weight is read after its gradient was applied, so `apply` may change it at once.
        """
        at, gradient = len(self.weights), logits
        first = next(i for i, layer in enumerate(self._layers) if isinstance(layer, nn.Linear))
        for i in range(len(self._layers) - 1, first - 1, -1):
            layer, inputs = self._layers[i], output.saved[i]
            if not isinstance(layer, nn.Linear):
                gradient = _GRADIENTS[type(layer)](gradient, output.saved[i + 1])
                continue
            at -= 1 if layer.bias is None else 2
            below = gradient
            if i > first:
                weight = self.weights[at][: len(gradient)]
                seen = features if i == len(self._layers) - 1 else None
                below = torch.bmm(gradient, weight) if seen is None else torch.baddbmm(seen, gradient, weight)
            apply(at, gradient.mT, inputs)
            if layer.bias is not None:
                apply(at + 1, gradient.sum(dim=1), None)
            gradient = below


class DenseStacking(Stacking):
    """Stacks dense nets, on a CPU."""

    max_devices = 10
    """The weights of ten small nets stay in a core's cache; more devices were slower (measured)."""

    def key(self, bench: Workbench) -> str:
        """Implement Stacking."""
        return str(bench.model.net) if isinstance(bench.model, TorchModel) and _stacks(bench.model) else ""

    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:  # noqa: ARG002  # no such layer has modes
        """Implement Stacking."""
        return DenseStack(models)


def _stacks(model: TorchModel) -> bool:
    """Whether a model is a net of layers that can be stacked, all of them trained, the last one nn.Linear.

    No two layers may share a weight: a stack has one gradient for each weight of each layer.
    """
    if type(model.net) is not nn.Sequential:
        return False
    layers = _layers(model.net)
    last = layers[-1] if layers else None
    weights = [id(weight) for layer in layers for weight in layer.parameters()]
    return (
        type(last) is nn.Linear
        and len(set(weights)) == len(weights)
        and all(type(layer) in (nn.Linear, *_GRADIENTS) or _flattens(layer) for layer in layers)
        and all(p.requires_grad for p in model.net.parameters())
        and model.taps_last_input
    )


def _layers(net: nn.Sequential) -> list[nn.Module]:
    """Return the layers of an nn.Sequential in order, including nested ones and repetitions."""
    return [layer for child in net for layer in (_layers(child) if type(child) is nn.Sequential else [child])]


def _flattens(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
