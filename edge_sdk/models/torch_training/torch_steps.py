"""One step of SGD and Adam, in the words that both Python and a traced fit understand (torch_script.py).

Each list has one tensor for each parameter that has a gradient, in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_gradients(gradients: list[Tensor], most: float, epsilon: float) -> list[Tensor]:
    """Shorten the gradient over all parameters to the norm that is allowed; epsilon: added to the norm."""
    norm = torch.stack([each.square().sum() for each in gradients]).sum(dim=0).sqrt()
    share = ((norm + epsilon).reciprocal() * most).clamp(max=1)
    return [each * share for each in gradients]


def with_decay(gradients: list[Tensor], values: list[Tensor], decays: list[bool], share: float) -> list[Tensor]:
    """Add `share` of the values to the gradients of those that decay."""
    found: list[Tensor] = []
    for at, gradient in enumerate(gradients):
        found.append(gradient.add(values[at], alpha=share) if decays[at] else gradient)
    return found


def sgd_step(values: list[Tensor], gradients: list[Tensor], rate: float) -> None:
    """Descend."""
    for at, gradient in enumerate(gradients):
        values[at].add_(gradient, alpha=-rate)


def momentum_step(
    values: list[Tensor], gradients: list[Tensor], velocities: list[Tensor], momentum: float, rate: float
) -> None:
    """Descend with momentum."""
    for at, gradient in enumerate(gradients):
        velocities[at].mul_(momentum).add_(gradient)
        values[at].add_(velocities[at], alpha=-rate)


def adam_step(  # noqa: PLR0917  # a traced fit knows lists and numbers
    values: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    constants: list[float],
    rates: list[float],
    roots: list[float],
) -> None:
    """Take a step of Adam; constants: both betas and epsilon; rates, roots: of adam_scales, for each parameter."""
    for at, gradient in enumerate(gradients):
        first[at].lerp_(gradient, 1 - constants[0])
        second[at].mul_(constants[1]).addcmul_(gradient, gradient, value=1 - constants[1])
        values[at].addcdiv_(first[at], second[at].sqrt().div_(roots[at]).add_(constants[2]), value=-rates[at])
