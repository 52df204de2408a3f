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
from edge_sdk.models.torch_training.torch_steps import adam_step, clipped_gradients, momentum_step, sgd_step, with_decay
from edge_sdk.objectives import Optim

Moments: TypeAlias = list[list[Tensor]]
"""One list for each kind of moment, aligned with the parameters."""
Gradients: TypeAlias = Sequence[Tensor | None]
"""Aligned with the parameters, with None for a parameter without gradient."""


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
        """Continue from `moments` after `steps` steps, or start without moments if they are None.

        decayed: the parameters that weight decay applies to, unless the settings say all, or None for all.
        stacked: parameters (c, ...) belong to c models; the gradient of each model is clipped separately.
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
        stepping = [at for at, gradient in enumerate(gradients) if gradient is not None]
        if not stepping:
            return
        self.count(stepping)
        optim, moments = self.optim, self.moments_of(stepping)
        values = [self._parameters[at] for at in stepping]
        found = [gradient for gradient in gradients if gradient is not None]
        if optim.clip_norm:
            found = self._clipped(found)
        if optim.weight_decay:
            found = with_decay(found, values, self.decaying(stepping), optim.weight_decay)
        if optim.kind == "adam":
            scales = [adam_scales(optim, int(self.steps[at])) for at in stepping]
            rates, roots = [rate for rate, _ in scales], [root for _, root in scales]
            adam_step(values, found, moments[0], moments[1], [optim.beta1, optim.beta2, EPSILON], rates, roots)
        elif moments:
            momentum_step(values, found, moments[0], optim.momentum, optim.learning_rate)
        else:
            sgd_step(values, found, optim.learning_rate)

    def count(self, stepping: Sequence[int], steps: int = 1) -> None:
        """Count steps of the parameters at these places, which are different ones."""
        if len(stepping) == len(self.steps):  # all of them: without an index, that is several times as fast
            self.steps += steps
        else:
            self.steps[stepping] += steps

    def moments_of(self, stepping: Sequence[int]) -> Moments:
        """Return the moments of the parameters at these places."""
        return [[kind[at] for at in stepping] for kind in self.moments]

    def decaying(self, stepping: Sequence[int]) -> list[bool]:
        """Return which of the parameters at these places weight decay is for."""
        return [self._decayed[at] for at in stepping]

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Clip the gradient to its maximum norm; in a stack, clip that of each model separately: (c, ...) each."""
        if not self._stacked:
            return clipped_gradients(gradients, self.optim.clip_norm, CLIP_EPSILON)
        squares = [each.square().reshape(len(each), -1).sum(dim=1) for each in gradients]  # (c,) each
        norm = torch.stack(squares).sum(dim=0).sqrt()
        share = (self.optim.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1)
        return [each * share.reshape(share.shape + (1,) * (each.dim() - share.dim())) for each in gradients]

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
