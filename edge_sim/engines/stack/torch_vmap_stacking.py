"""Chooses nets that torch.func can stack, by a trial on one sample: no list of layers would be complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from edge_sdk.arrays import Floats
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.models.torch_nets.torch_anatomy import Tapped
from edge_sdk.models.torch_nets.torch_cosine import TorchCosineHead
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.objectives import FEATURES, needed
from edge_sim.engines.stack.torch_stack import PRIVATE, ApplyGradient, Stack, Stacking, StackOutput


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
