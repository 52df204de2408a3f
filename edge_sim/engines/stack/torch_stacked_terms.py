"""The loss terms of models/torch_terms.py for a stack of devices, each of which has its own knowledge.

Mini-batches may be of different sizes; `share` is 1 / b for a sample of a mini-batch of b, and 0 for padding, so that a
weighted sum over samples is the mean over each device's own.  A form is registered in the entry-point group
`edge_sdk.stacked_terms` under its term's name; a fit with a term that has none is served by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from edge_sdk.objectives import (
    NORM_FLOOR,
    ClassTarget,
    CrossEntropy,
    Distill,
    LogitGradient,
    Objective,
    PrototypeDistance,
    PrototypePull,
    form_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class StackedBatch:
    """One step's forward pass of the first c devices of a stack."""

    logits: Tensor  # (c, b, k)
    features: Tensor  # (c, b, d)
    labels: Tensor  # (c, b)
    share: Tensor  # (c, b)
    step: int

    @property
    def count(self) -> int:
        """Number of devices: c."""
        return len(self.labels)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over each device's own samples: (c, b) -> (c,)."""
        return (rows * self.share).sum(dim=1)


StackedLoss: TypeAlias = Callable[[StackedBatch], Tensor]
"""Each device's weighted loss: (c,)."""
StackedForm: TypeAlias = Callable[[Sequence[Any], int, torch.device], StackedLoss]
"""(one term of each device, classes, where the stack is) -> their loss."""
STACKED_FORMS = "edge_sdk.stacked_terms"


def stacked_loss(objectives: Sequence[Objective], classes: int, device: torch.device) -> StackedLoss:
    """The sum of all terms; objectives: of each device, alike in the kinds of their terms; device: of the stack."""
    forms: list[StackedForm] = [form_of(STACKED_FORMS, type(term)) for term in objectives[0]]
    alike = zip(*objectives, strict=True)
    losses = [form(terms, classes, device) for form, terms in zip(forms, alike, strict=True)]
    return lambda done: torch.stack([loss(done) for loss in losses]).sum(dim=0)


def shape_of(objective: Objective) -> tuple[object, ...] | None:
    """Return a key that is equal for objectives of one stack; None: this one is not stacked."""
    if not all(form_of(STACKED_FORMS, type(term)) for term in objective):
        return None
    return tuple((type(term), getattr(term, "temperature", None)) for term in objective)


def _weights(terms: Sequence[Any], device: torch.device) -> Tensor:
    return torch.tensor([term.weight for term in terms], device=device)  # (c,)


def stacked_cross_entropy(terms: Sequence[CrossEntropy], _classes: int, device: torch.device) -> StackedLoss:
    """CE(y, softmax(f))."""
    weights = _weights(terms, device)

    def loss(done: StackedBatch) -> Tensor:
        rows = nnf.cross_entropy(done.logits.flatten(0, 1), done.labels.flatten(), reduction="none")
        return weights[: done.count] * done.mean(rows.view_as(done.labels))

    return loss


def stacked_logit_gradient(terms: Sequence[LogitGradient], _classes: int, device: torch.device) -> StackedLoss:
    """<gradient, f>."""
    weights, gradients = (
        _weights(terms, device),
        _padded([term.gradient for term in terms], device),
    )  # (c,), (c, steps, b, k)

    def loss(done: StackedBatch) -> Tensor:
        given = gradients[: done.count, done.step]
        return weights[: done.count] * done.mean((given * done.logits).sum(dim=-1))

    return loss


def stacked_distill(terms: Sequence[Distill], _classes: int, device: torch.device) -> StackedLoss:
    """KL(softmax(t / E) || softmax(f / E)); of LessForgetting, too."""
    weights, temperature = _weights(terms, device), terms[0].temperature
    teachers = nnf.log_softmax(
        _padded([term.logits for term in terms], device) / temperature, dim=-1
    )  # (c, steps, b, k)

    def loss(done: StackedBatch) -> Tensor:
        teacher = teachers[: done.count, done.step]
        own = nnf.log_softmax(done.logits / temperature, dim=-1)
        rows = nnf.kl_div(own, teacher, reduction="none", log_target=True).sum(dim=-1)
        return weights[: done.count] * done.mean(rows)

    return loss


def stacked_class_target(terms: Sequence[ClassTarget], classes: int, device: torch.device) -> StackedLoss:
    """CE(F^y, softmax(f))."""
    weights, rows_of = _weights(terms, device), _rows_by_label(terms, classes, device)

    def loss(done: StackedBatch) -> Tensor:
        rows, known = rows_of(done)
        own = nnf.log_softmax(done.logits, dim=-1)
        return -weights[: done.count] * done.mean((rows * known * own).sum(dim=-1))

    return loss


def stacked_prototype_pull(terms: Sequence[PrototypePull], classes: int, device: torch.device) -> StackedLoss:
    """(R(x) - C^y)^2."""
    weights, rows_of = _weights(terms, device), _rows_by_label(terms, classes, device)

    def loss(done: StackedBatch) -> Tensor:
        rows, known = rows_of(done)
        gaps = (done.features - rows) * known  # (c, b, d)
        return weights[: done.count] * done.mean(gaps.square().mean(dim=-1))

    return loss


def stacked_prototype_distance(terms: Sequence[PrototypeDistance], classes: int, device: torch.device) -> StackedLoss:
    """|R(x) - H^y|."""
    weights, rows_of = _weights(terms, device), _rows_by_label(terms, classes, device)

    def loss(done: StackedBatch) -> Tensor:
        rows, known = rows_of(done)
        gaps = (done.features - rows) * known  # (c, b, d)
        return weights[: done.count] * done.mean((gaps.square().sum(dim=-1) + NORM_FLOOR).sqrt())

    return loss


def _rows_by_label(
    terms: Sequence[Any], classes: int, device: torch.device
) -> Callable[[StackedBatch], tuple[Tensor, Tensor]]:
    """Return the function that looks up the row of each sample's class (c, b, d), and whether it has one (c, b, 1)."""
    rows = torch.zeros(len(terms), classes, terms[0].rows.shape[1])  # (c, k, d)
    known = torch.zeros(len(terms), classes, 1)
    for at, term in enumerate(terms):
        index = torch.from_numpy(term.classes)
        rows[at, index] = torch.from_numpy(np.require(term.rows, np.float32, ["C", "W"]))
        known[at, index] = 1
    rows, known = rows.to(device), known.to(device)

    def look_up(done: StackedBatch) -> tuple[Tensor, Tensor]:
        whose = torch.arange(done.count, device=device)[:, None]  # (c, 1)
        return rows[whose, done.labels], known[whose, done.labels]

    return look_up


def _padded(arrays: Sequence[Any], device: torch.device) -> Tensor:
    """Join the (steps, b, k) of each device, padded with zeros to the largest: (c, steps, b, k)."""
    steps, batch = (max(array.shape[axis] for array in arrays) for axis in (0, 1))
    out = torch.zeros(len(arrays), steps, batch, arrays[0].shape[2])
    for at, array in enumerate(arrays):
        out[at, : array.shape[0], : array.shape[1]] = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    return out.to(device)
