"""The steps of one fit of a torch net by torch's autograd, which every faster way must equal to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edge_sdk.errors import ModelError
from edge_sdk.models.checks import check_width
from edge_sdk.models.torch_nets.torch_anatomy import Tap
from edge_sdk.models.torch_nets.torch_forms import Loss, Pass
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser


class Steps(NamedTuple):
    """The steps of one fit."""

    name: str
    """The model's."""
    classes: int
    net: nn.Module
    tap: Tap | None
    """Gives logits and features, or is None if the objective has no term on features."""
    head: nn.Linear | None
    parameters: list[Tensor]
    trained: Sequence[bool]
    """Which of them the fit changes."""
    inputs: Tensor  # (n, ...), on the CPU, as labels and indices are
    labels: Tensor | None  # (n,)
    indices: Tensor  # (steps, b)
    device: torch.device
    loss: Loss
    optimiser: TorchOptimiser
    switch: Callable[[], None]
    """Sets the net's mode before a step."""
    seeded: Callable[[], AbstractContextManager[None]]

    def take(self, steps: range) -> list[float]:
        """Take these steps; return the loss of each, up to one that is not finite."""
        losses: list[float] = []
        with self.seeded():
            for step in steps:
                loss, gradients = self.gradients(*self.batch(step), step)
                self.optimiser.step(gradients)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    break
        return losses

    def gradients(self, x: Tensor, labels: Tensor | None, step: int) -> tuple[Tensor, list[Tensor | None]]:
        """Return the loss of a mini-batch x (b, ...), labels (b,), and the gradient of each parameter.

        None if the parameter is not trained, or if the loss does not depend on it.
        """
        loss = self.loss(self.passed(x, labels), step)
        return loss.detach(), self.slopes(loss)

    def passed(self, x: Tensor, labels: Tensor | None) -> Pass:
        """Return the forward pass of a mini-batch x (b, ...), labels (b,)."""
        self.switch()
        logits, features = self.tap(x) if self.tap else (self.net(x), None)
        if not isinstance(logits, Tensor):
            found = type(logits).__name__
            raise ModelError(
                f"model {self.name!r} gives a {found} in training, else a tensor: let it always give the logits alone"
            )
        check_width(self.name, tuple(logits.shape), len(x), self.classes)
        return Pass(logits, features, labels, self.head, self.parameters)

    def slopes(self, loss: Tensor, *, once: bool = True) -> list[Tensor | None]:
        """Return the gradient of each parameter, as `gradients` does; once: the same pass is not requested again."""
        wanted = [p for p, trains in zip(self.parameters, self.trained, strict=True) if trains]
        differs = wanted and loss.requires_grad
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True, retain_graph=not once) if differs else ()
        found = iter([_dense(each) for each in slopes])
        return [next(found, None) if trains else None for trains in self.trained]

    def batch(self, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the samples (b, ...) and labels (b,) of a step."""
        index = self.indices[step]
        y = None if self.labels is None else self.labels.index_select(0, index).to(self.device)
        return self.inputs.index_select(0, index).to(self.device), y


def _dense(slope: Tensor | None) -> Tensor | None:
    """Return a gradient as optimisers take it: that of nn.Embedding(sparse=True) has only the rows that were used."""
    return slope.to_dense() if slope is not None and slope.is_sparse else slope


def changes_alone(steps: Steps, losses: Sequence[Loss], labels: Tensor | None, x: Tensor) -> list[Tensor]:
    """Return what a step with each of these losses alone would add to each parameter, by SGD with rate 1.

    x: the samples (b, ...) of the step, labels (b,).  One loss after the other, the parameters in their order.  A
    change is what rounding leaves of it: the weights after the step less those before.  Nothing changes but buffers.
    """
    done = steps.passed(x, labels)
    slopes = [steps.slopes(loss(done, 0), once=at == len(losses) - 1) for at, loss in enumerate(losses)]
    with torch.no_grad():
        pairs = [pair for each in slopes for pair in zip(steps.parameters, each, strict=True)]
        return [torch.zeros_like(p) if slope is None else (p - slope).sub_(p) for p, slope in pairs]
