"""Stacks of any nets of one architecture: torch.func runs the forward pass of the first net with the weights of all.

The convolutions of all devices become one grouped convolution.  A GPU has the cores for it; a CPU was slower with it
than with one device after the other.  The backward pass is autograd's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from edge_sdk.models.torch_anatomy import Tapped
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import FEATURES, needed
from edge_sim.engines.stack.torch_stack import ApplyGradient, Stack, StackOutput

SAMPLES = 4096
"""Samples of all devices in one forward pass: limits the activations (a small net has some 100 kB a sample)."""


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
        if features is not None and own_features.requires_grad:  # else nothing trained leads to them
            reached, gradients = [own_logits, own_features], [logits, features]
        for at, gradient in enumerate(torch.autograd.grad(reached, weights, gradients)):
            apply(at, gradient, None)

    def _one(self, weights: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Pass the samples of one device (b, ...) through its net; return logits (b, k) and features (b, d)."""
        found: tuple[Tensor, Tensor] = functional_call(self._net, dict(zip(self._names, weights, strict=True)), (x,))
        return found
