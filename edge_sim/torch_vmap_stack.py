"""Any nets of one architecture as one: torch.func runs the first one's forward pass with the weights of all.

A convolution of each becomes one grouped convolution of all, which a GPU has the cores for; a CPU was slower at it than
at one after the other.  The way back is autograd's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from edge_sdk.models.torch_anatomy import Tapped
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import FEATURES, needed
from edge_sim.torch_stack import ApplyGradient, Stack, StackOutput

SAMPLES = 4096
"""Of all devices of a stack in one forward pass: bounds the activations (a small net has some 100 kB a sample)."""


class VmapStack(Stack):
    """Of nets of any layers."""

    def __init__(self, models: Sequence[TorchModel], *, train: bool) -> None:
        """train: in training mode."""
        super().__init__(models)
        first = models[0]
        self._net = Tapped(first.net, needed(first.tap, FEATURES)).train(train)
        self._names = [f"net.{name}" for name, _ in first.net.named_parameters()]

    def outcome(self, x: Tensor, count: int) -> StackOutput:
        """See Stack."""
        weights = [each[:count].detach().requires_grad_() for each in self.weights]
        at_once = max(1, SAMPLES // x.shape[1])
        over_devices = vmap(self._one, chunk_size=at_once if at_once < count else None)
        logits, features = over_devices(weights, x.expand(count, *x.shape[1:]))
        return StackOutput(logits.detach(), features.detach(), (*weights, logits, features))

    def go_back(self, outcome: StackOutput, logits: Tensor, features: Tensor | None, change: ApplyGradient) -> None:
        """See Stack."""
        *weights, own_logits, own_features = outcome.given
        reached, slopes = [own_logits], [logits]
        if features is not None and own_features.requires_grad:  # else nothing trained leads to them
            reached, slopes = [own_logits, own_features], [logits, features]
        for at, slope in enumerate(torch.autograd.grad(reached, weights, slopes)):
            change(at, slope, None)

    def _one(self, weights: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """One device's samples (b, ...) through its net: (b, k), (b, d)."""
        found: tuple[Tensor, Tensor] = functional_call(self._net, dict(zip(self._names, weights, strict=True)), (x,))
        return found
