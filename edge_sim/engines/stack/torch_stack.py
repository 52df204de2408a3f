"""Stacks: models of several devices with one architecture, computed as one, by batched products or by torch.func.

Dense nets: each layer is a batched matrix product over the weights of all devices.  For small layers a CPU spends more
on calls than on arithmetic, and ten stacked layers cost as many calls as one.  The devices of a stack share nothing,
so each has the same gradient as alone, up to rounding.

Other nets: torch.func stacks those that pass a trial on one sample; no list of layers would be complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from edge_sdk.arrays import Floats
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Private
from edge_sdk.models.torch_nets.torch_anatomy import Tapped
from edge_sdk.models.torch_nets.torch_cosine import TorchCosineHead
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.objectives import FEATURES, needed

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


class VmapStacking(Stacking):
    """Stacks nets whose outputs are the same in a stack as alone."""

    max_devices = 128
    """At 32 samples each, some 4,000 samples a step: they occupy the cores of a large GPU, and activations of small
    nets still fit into the memory of a small one."""

    def __init__(self) -> None:
        self._firsts: dict[str, TorchModel] = {}
        """The first model of each key; its forward pass serves all others."""

    def key(self, bench: Workbench) -> str:
        """Implement Stacking."""
        model = bench.model
        if not isinstance(model, TorchModel) or not _only_weights(model):
            return ""
        key = f"{model.trained[0].device} {model.spec.layout.hex()} {model.net}"
        like = self._firsts.setdefault(key, model)
        return key if _agrees(model, like, bench.source(PRIVATE)[0][:1]) else ""

    def stack(self, models: Sequence[TorchModel], *, train: bool) -> Stack:
        """Implement Stacking."""
        return VmapStack(models, train=train)


def _only_weights(model: TorchModel) -> bool:
    """Whether all of a model is trained: it has no buffers, no frozen weights, and no scale of a cosine head."""
    return (
        model.tap is not None
        and len(model.trained) == len([*model.net.parameters()])
        and next(model.net.buffers(), None) is None
        and not any(isinstance(layer, TorchCosineHead) for layer in model.net.modules())
    )


def _agrees(model: TorchModel, like: TorchModel, sample: Floats) -> bool:
    """Whether a stack of `like` and the model gives the model's logits for a sample (1, c, h, w), and has gradients.

    A second sample is in the mini-batch: a net that mixes samples, like BatchNorm, cannot be padded.  A net
    that draws random numbers in training fails in vmap.
    """
    x = torch.from_numpy(np.concatenate([sample, sample / 2])[None]).to(model.trained[0].device)  # (1, 2, c, h, w)
    try:
        stack = VmapStack([like, model], train=True)
        output = stack.forward(x, 2)
        gradients = torch.ones_like(output.logits), torch.ones_like(output.features)
        stack.backward(output, *gradients, lambda _at, _gradient, _inputs: None)
    except (RuntimeError, ValueError, TypeError, IndexError):  # raised by torch if a net does not fit
        return False
    finally:
        like.net.eval()
    return np.allclose(output.logits[1, :1].cpu().numpy(), model.logits(sample), rtol=1e-4, atol=1e-5)


# Stacks of any nets of one architecture: torch.func runs the forward pass of the first net with the weights of all.
#
# The convolutions of all devices become one grouped convolution.  A GPU has the cores for it; a CPU was slower with it
# than with one device after the other.  The backward pass is autograd's.

SAMPLES = 4096
"""Maximum samples of all devices in one forward pass; it bounds activations (about 100 kB a sample in a small net)."""


class VmapStack(Stack):
    """A stack of nets with any layers."""

    def __init__(self, models: Sequence[TorchModel], *, train: bool) -> None:
        """train: in training mode."""
        super().__init__(models)
        first = models[0]
        self._net = Tapped(first.net, needed(first.tap, FEATURES)).train(train)
        self._names = [f"net.{name}" for name, _ in first.net.named_parameters()]

    def forward(self, x: Tensor, count: int) -> StackOutput:
        """Implement Stack."""
        weights = [each[:count].detach().requires_grad_() for each in self.weights]
        at_once = max(1, SAMPLES // x.shape[1])
        over_devices = vmap(self._one, chunk_size=at_once if at_once < count else None)
        logits, features = over_devices(weights, x.expand(count, *x.shape[1:]))
        return StackOutput(logits.detach(), features.detach(), (*weights, logits, features))

    def backward(self, output: StackOutput, logits: Tensor, features: Tensor | None, apply: ApplyGradient) -> None:
        """Implement Stack."""
        *weights, own_logits, own_features = output.saved
        reached, gradients = [own_logits], [logits]
        if features is not None and own_features.requires_grad:  # else they depend on no trained weight
            reached, gradients = [own_logits, own_features], [logits, features]
        for at, gradient in enumerate(torch.autograd.grad(reached, weights, gradients)):
            apply(at, gradient, None)

    def _one(self, weights: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Pass the samples of one device (b, ...) through its net; return logits (b, k) and features (b, d)."""
        found: tuple[Tensor, Tensor] = functional_call(self._net, dict(zip(self._names, weights, strict=True)), (x,))
        return found
