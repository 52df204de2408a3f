"""The loss terms in torch: the formulas of edge_sdk.objectives, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from edge_sdk.objectives import CrossEntropy, Floats, LogitGradient, Objective, Term, required_labels

Loss: TypeAlias = Callable[[Tensor, "Tensor | None", int], Tensor]
"""(logits (b, k), labels (b,) or None, step) -> weighted mean over the batch, a scalar."""


def objective_loss(objective: Objective, device: torch.device) -> Loss:
    """The sum of all terms; whatever does not depend on the model is computed here, once for all steps."""
    losses = [_term_loss(term, device) for term in objective]

    def total(logits: Tensor, labels: Tensor | None, step: int) -> Tensor:
        return torch.stack([loss(logits, labels, step) for loss in losses]).sum()

    return losses[0] if len(losses) == 1 else total


def _term_loss(term: Term, device: torch.device) -> Loss:
    if isinstance(term, CrossEntropy):
        return lambda logits, labels, _: term.weight * nnf.cross_entropy(logits, required_labels(labels))
    if isinstance(term, LogitGradient):
        gradient = to_tensor(term.gradient, device) * term.weight  # (steps, b, k)
        return lambda logits, _, step: (gradient[step] * logits).sum() / len(logits)
    temperature, weight = term.temperature, term.weight
    teacher = nnf.log_softmax(to_tensor(term.logits, device) / temperature, dim=-1)  # (steps, b, k)

    def divergence(logits: Tensor, _: Tensor | None, step: int) -> Tensor:
        own = nnf.log_softmax(logits / temperature, dim=-1)
        return weight * nnf.kl_div(own, teacher[step], reduction="batchmean", log_target=True)

    return divergence


def to_tensor(values: Floats, device: torch.device) -> Tensor:
    """An f4 tensor of the values; on the CPU a view where the array is writable, for torch takes no other."""
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"])).to(device)
