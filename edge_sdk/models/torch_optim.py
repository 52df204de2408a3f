"""SGD and Adam over a model's parameters, with the same steps as torch.optim by default.

It is written out here because torch.optim loads torch's compiler when the first optimiser is made (seconds and some
hundred megabytes that a small board does not have), and costs as much per step as a small model's backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_sdk.models.optim import CLIP_EPSILON, EPSILON, adam_scales, moment_count, pack_optim
from edge_sdk.objectives import Optim

Moments: TypeAlias = list[list[Tensor]]
"""One list for each kind of moment, aligned with the parameters."""
Gradients: TypeAlias = Sequence[Tensor | None]
"""Aligned with the parameters; None: the parameter has no gradient."""


class TorchOptimiser:
    """Keeps one list of tensors per moment, aligned with the parameters."""

    def __init__(
        self,
        optim: Optim,
        parameters: Sequence[Tensor],
        moments: Moments | None = None,
        steps: NDArray[np.int64] | None = None,
        *,
        decayed: Sequence[bool] | None = None,
        stacked: bool = False,
    ) -> None:
        """Take over `moments`, those after `steps` steps; None: start without moments.

        decayed: which parameters weight decay is for, unless the settings say all; None: all.
        stacked: parameters (c, ...) are those of c models, whose gradients are clipped each by itself.
        """
        self.optim = optim
        self._decayed = [True] * len(parameters) if decayed is None or optim.decay_all else decayed
        self._stacked = stacked
        self.steps = np.zeros(len(parameters), np.int64) if steps is None else steps
        """The number of steps taken with each parameter."""
        self._parameters = parameters
        self.moments = moments or [
            [torch.zeros_like(p, memory_format=torch.contiguous_format) for p in parameters]
            for _ in range(moment_count(optim))
        ]

    @torch.no_grad()
    def step(self, gradients: Gradients) -> None:
        """Change the parameters in place; a parameter without a gradient keeps its value and its moments."""
        self.steps += [gradient is not None for gradient in gradients]
        if self.optim.clip_norm:
            gradients = self._clipped(gradients)
        if self.optim.weight_decay:
            gradients = self._with_decay(gradients)
        if self.optim.kind == "adam":
            self._adam(gradients)
        else:
            self._sgd(gradients)

    def _clipped(self, gradients: Gradients) -> Gradients:
        """Shorten the gradient over all parameters to the norm that is allowed."""
        squares = [self._square(each) for each in gradients if each is not None]  # () or (c,) each
        if not squares:
            return gradients
        norm = torch.stack(squares).sum(dim=0).sqrt()
        share = (self.optim.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1)
        return [
            each if each is None else each * share.reshape(share.shape + (1,) * (each.dim() - share.dim()))
            for each in gradients
        ]

    def _square(self, gradient: Tensor) -> Tensor:
        squares = gradient.square()
        return squares.reshape(len(squares), -1).sum(dim=1) if self._stacked else squares.sum()

    def _with_decay(self, gradients: Gradients) -> Gradients:
        return [
            each.add(value, alpha=self.optim.weight_decay) if each is not None and decays else each
            for each, value, decays in zip(gradients, self._parameters, self._decayed, strict=True)
        ]

    def _adam(self, gradients: Gradients) -> None:
        beta1, beta2 = self.optim.beta1, self.optim.beta2
        for steps, value, gradient, first, second in zip(
            self.steps.tolist(), self._parameters, gradients, *self.moments, strict=True
        ):
            if gradient is not None:
                rate, root = adam_scales(self.optim, steps)
                first.lerp_(gradient, 1 - beta1)
                second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                value.addcdiv_(first, second.sqrt().div_(root).add_(EPSILON), value=-rate)

    def _sgd(self, gradients: Gradients) -> None:
        velocities = self.moments[0] if self.moments else gradients
        for value, gradient, velocity in zip(self._parameters, gradients, velocities, strict=True):
            if gradient is None or velocity is None:
                continue
            if self.moments:
                velocity.mul_(self.optim.momentum).add_(gradient)
            value.add_(velocity, alpha=-self.optim.learning_rate)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        moments = {
            f"moment{i}.{j}": tensor.cpu().numpy()
            for i, tensors in enumerate(self.moments)
            for j, tensor in enumerate(tensors)
        }
        return {"optim": pack_optim(self.optim), "steps": self.steps.copy(), **moments}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `arrays` of an equal optimiser gave."""
        self.steps = arrays["steps"].copy()
        for i, tensors in enumerate(self.moments):
            for j, tensor in enumerate(tensors):
                tensor.copy_(torch.from_numpy(arrays[f"moment{i}.{j}"]))
