"""The loss terms of models/torch_nets/torch_terms.py for a stack of devices, each of which has its own knowledge.

Each form computes a term's value and gradients in closed form; autograd would take longer than both.
Mini-batches may be of different sizes; `share` is 1 / b for a sample of a mini-batch of b, and 0 for padding, so that a
weighted sum over samples is the mean over each device's own.  A form is registered in the entry-point group
`edge_sdk.stacked_terms` under its term's name; a fit that uses a term without a form is computed alone.
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


@dataclass(frozen=True, slots=True, eq=False)
class StackedValue:
    """Each device's loss by one term or all, and its gradients, or None where it does not depend on these."""

    loss: Tensor  # (c,)
    logits: Tensor | None = None  # (c, b, k)
    features: Tensor | None = None  # (c, b, d)

    def plus(self, other: StackedValue) -> StackedValue:
        """Return the sum of two."""
        return StackedValue(
            self.loss + other.loss, _sum(self.logits, other.logits), _sum(self.features, other.features)
        )


StackedLoss: TypeAlias = Callable[[StackedBatch], StackedValue]
"""Each device's weighted loss and gradients."""
StackedForm: TypeAlias = Callable[[Sequence[Any], int, torch.device], StackedLoss]
"""(one term of each device, classes, torch device of the stack) -> their loss."""
STACKED_FORMS = "edge_sdk.stacked_terms"


def stacked_loss(objectives: Sequence[Objective], classes: int, device: torch.device) -> StackedLoss:
    """The sum of all terms; objectives: of each device, with the same kinds of terms; device: of the stack."""
    forms: list[StackedForm] = [form_of(STACKED_FORMS, type(term)) for term in objectives[0]]
    alike = zip(*objectives, strict=True)
    first, *others = [form(terms, classes, device) for form, terms in zip(forms, alike, strict=True)]

    def loss(done: StackedBatch) -> StackedValue:
        found = first(done)
        for each in others:
            found = found.plus(each(done))
        return found

    return loss


def shape_of(objective: Objective) -> tuple[object, ...] | None:
    """Return a key that is equal for objectives of one stack, or None if this one is not stacked."""
    if not all(form_of(STACKED_FORMS, type(term)) for term in objective):
        return None
    return tuple((type(term), getattr(term, "temperature", None)) for term in objective)


def stacked_cross_entropy(terms: Sequence[CrossEntropy], _classes: int, device: torch.device) -> StackedLoss:
    """CE(y, softmax(f))."""
    weigh = _Weights(terms, device)

    def loss(done: StackedBatch) -> StackedValue:
        weights, labels = weigh(done), done.labels[..., None]  # (c, b, 1) each
        own = nnf.log_softmax(done.logits, dim=-1)
        value = -(own.gather(-1, labels) * weights).sum(dim=(1, 2))
        return StackedValue(value, logits=(own.exp_() * weights).scatter_add_(-1, labels, -weights))

    return loss


def stacked_logit_gradient(terms: Sequence[LogitGradient], _classes: int, device: torch.device) -> StackedLoss:
    """<gradient, f>."""
    weigh, gradients = _Weights(terms, device), _padded([term.gradient for term in terms], device)  # (c, steps, b, k)

    def loss(done: StackedBatch) -> StackedValue:
        slopes = gradients[: done.count, done.step] * weigh(done)
        return StackedValue((slopes * done.logits).sum(dim=(1, 2)), logits=slopes)

    return loss


def stacked_distill(terms: Sequence[Distill], _classes: int, device: torch.device) -> StackedLoss:
    """KL(softmax(t / E) || softmax(f / E)); of LessForgetting, too."""
    weigh, temperature = _Weights(terms, device), terms[0].temperature
    teachers = nnf.log_softmax(
        _padded([term.logits for term in terms], device) / temperature, dim=-1
    )  # (c, steps, b, k)

    def loss(done: StackedBatch) -> StackedValue:
        teacher, weights = teachers[: done.count, done.step], weigh(done)
        own = nnf.log_softmax(done.logits / temperature, dim=-1)
        divergence = nnf.kl_div(own, teacher, reduction="none", log_target=True)  # (c, b, k)
        slopes = (own.exp() - teacher.exp()) * (weights / temperature)
        return StackedValue((divergence * weights).sum(dim=(1, 2)), logits=slopes)

    return loss


def stacked_class_target(terms: Sequence[ClassTarget], classes: int, device: torch.device) -> StackedLoss:
    """CE(F^y, softmax(f))."""
    weigh, rows_of = _Weights(terms, device), _RowsByLabel(terms, classes, device)

    def loss(done: StackedBatch) -> StackedValue:
        rows, known = rows_of(done)
        weights, own = weigh(done) * known, nnf.log_softmax(done.logits, dim=-1)
        value = -(rows * own * weights).sum(dim=(1, 2))
        return StackedValue(value, logits=(own.exp() * rows.sum(dim=-1, keepdim=True) - rows) * weights)

    return loss


def stacked_prototype_pull(terms: Sequence[PrototypePull], classes: int, device: torch.device) -> StackedLoss:
    """(R(x) - C^y)^2."""
    weigh, rows_of = _Weights(terms, device), _RowsByLabel(terms, classes, device)

    def loss(done: StackedBatch) -> StackedValue:
        rows, known = rows_of(done)
        weights = weigh(done) * known / rows.shape[-1]
        gaps = done.features - rows
        value = (_squares(gaps) * weights).sum(dim=(1, 2))
        return StackedValue(value, features=gaps.mul_(2 * weights))

    return loss


def stacked_prototype_distance(terms: Sequence[PrototypeDistance], classes: int, device: torch.device) -> StackedLoss:
    """|R(x) - H^y|."""
    weigh, rows_of = _Weights(terms, device), _RowsByLabel(terms, classes, device)

    def loss(done: StackedBatch) -> StackedValue:
        rows, known = rows_of(done)
        gaps, weights = done.features - rows, weigh(done)
        norms = (_squares(gaps) * known + NORM_FLOOR).sqrt()  # (c, b, 1)
        value = (norms * weights).sum(dim=(1, 2))
        return StackedValue(value, features=gaps.mul_(weights * known / norms))

    return loss


class _Weights:
    """The weight of a term for each device."""

    def __init__(self, terms: Sequence[Any], device: torch.device) -> None:
        self._weights = torch.tensor([term.weight for term in terms], device=device)[:, None, None]  # (c, 1, 1)

    def __call__(self, done: StackedBatch) -> Tensor:
        """Return the weight of each sample in its device's loss: (c, b, 1)."""
        return self._weights[: done.count] * done.share[..., None]


class _RowsByLabel:
    """Each device's rows by class of a term."""

    def __init__(self, terms: Sequence[Any], classes: int, device: torch.device) -> None:
        first = terms[0]
        held = first.classes.tobytes()
        self._shared = all(term.rows is first.rows and term.classes.tobytes() == held for term in terms)
        own = terms[:1] if self._shared else terms  # rows sent to all devices are one object
        rows = torch.zeros(len(own), classes, first.rows.shape[1])  # (c, k, d), or (1, k, d)
        known = torch.zeros(len(own), classes, 1)
        for at, term in enumerate(own):
            index = torch.from_numpy(term.classes)
            rows[at, index] = torch.from_numpy(np.require(term.rows, np.float32, ["C", "W"]))
            known[at, index] = 1
        self._rows, self._known = rows.to(device), known.to(device)

    def __call__(self, done: StackedBatch) -> tuple[Tensor, Tensor]:
        """Return the row of each sample's class (c, b, d), zeros if it has none, and whether it has one (c, b, 1)."""
        if self._shared:
            return self._rows[0][done.labels], self._known[0][done.labels]
        whose = torch.arange(done.count, device=self._rows.device)[:, None]  # (c, 1)
        return self._rows[whose, done.labels], self._known[whose, done.labels]


def _squares(gaps: Tensor) -> Tensor:
    """Return the squared length of each row: (c, b, d) -> (c, b, 1)."""
    return gaps.square().sum(dim=-1, keepdim=True)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None else other if one is None else one + other


def _padded(arrays: Sequence[Any], device: torch.device) -> Tensor:
    """Join the (steps, b, k) of each device, padded with zeros to the largest: (c, steps, b, k)."""
    steps, batch = (max(array.shape[axis] for array in arrays) for axis in (0, 1))
    out = torch.zeros(len(arrays), steps, batch, arrays[0].shape[2])
    for at, array in enumerate(arrays):
        out[at, : array.shape[0], : array.shape[1]] = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    return out.to(device)
