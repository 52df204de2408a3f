"""The loss terms in torch: the formulas of edge_sdk.objectives, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from edge_sdk.objectives import (
    FAKES,
    FEATURES,
    HEAD,
    LABELS,
    NORM_FLOOR,
    BalancedCrossEntropy,
    ClassContrast,
    ClassTarget,
    CrossEntropy,
    DataFree,
    Distill,
    Floats,
    HeadLabels,
    HeadMatch,
    HeadProximal,
    LessForgetting,
    LogitGradient,
    LogitMatch,
    ModelContrast,
    Objective,
    PrototypeDistance,
    PrototypePull,
    Proximal,
    Term,
    needed,
)
from edge_sdk.objectives.contrast import APART


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass over one mini-batch gave."""

    logits: Tensor  # (b, k)
    features: Tensor | None  # (b, d); only where the objective has a term on them
    labels: Tensor | None  # (b,)
    head: Callable[[Tensor], Tensor] | None  # features (m, d) -> logits (m, k)
    parameters: Sequence[Tensor]  # p scalars together
    fakes: tuple[Tensor, Tensor] | None = None  # (b, k), (b, k): of samples made up, a teacher's and the net's logits


Loss: TypeAlias = Callable[[Pass, int], Tensor]
"""(forward pass, step) -> weighted mean over the batch, a scalar."""


def objective_loss(objective: Objective, device: torch.device) -> Loss:
    """The sum of all terms; whatever does not depend on the model is computed here, once for all steps."""
    losses = [_LOSSES[type(term)](term, device) for term in objective]

    def total(done: Pass, step: int) -> Tensor:
        return torch.stack([loss(done, step) for loss in losses]).sum()

    return losses[0] if len(losses) == 1 else total


def _cross_entropy(term: CrossEntropy, _device: torch.device) -> Loss:
    return lambda done, _: term.weight * nnf.cross_entropy(done.logits, needed(done.labels, LABELS))


def _balanced_cross_entropy(term: BalancedCrossEntropy, device: torch.device) -> Loss:
    shifts = to_tensor(term.shifts(), device)  # (k,)
    return lambda done, _: term.weight * nnf.cross_entropy(done.logits + shifts, needed(done.labels, LABELS))


def _logit_gradient(term: LogitGradient, device: torch.device) -> Loss:
    gradient = to_tensor(term.gradient, device) * term.weight  # (steps, b, k)
    return lambda done, step: (gradient[step] * done.logits).sum() / len(done.logits)


def _distill(term: Distill, device: torch.device) -> Loss:
    teacher = nnf.log_softmax(to_tensor(term.logits, device) / term.temperature, dim=-1)  # (steps, b, k)

    def divergence(done: Pass, step: int) -> Tensor:
        own = nnf.log_softmax(done.logits / term.temperature, dim=-1)
        return term.weight * nnf.kl_div(own, teacher[step], reduction="batchmean", log_target=True)

    return divergence


def _logit_match(term: LogitMatch, device: torch.device) -> Loss:
    targets = to_tensor(term.logits, device)  # (steps, b, k)
    error = nnf.mse_loss if term.error == "squared" else nnf.l1_loss
    return lambda done, step: term.weight * error(done.logits, targets[step])


def _prototype_pull(term: PrototypePull, device: torch.device) -> Loss:
    rows_of = _rows_by_label(term, device)

    def pull(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, d), (b, 1)
        return term.weight * ((needed(done.features, FEATURES) - rows) * known).square().mean()

    return pull


def _prototype_distance(term: PrototypeDistance, device: torch.device) -> Loss:
    rows_of = _rows_by_label(term, device)

    def distance(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, d), (b, 1)
        return term.weight * _norms((needed(done.features, FEATURES) - rows) * known).mean()

    return distance


def _head_match(term: HeadMatch, device: torch.device) -> Loss:
    features, soft = to_tensor(term.features, device), to_tensor(term.soft, device)  # (m, d), (m, k)

    def match(done: Pass, _: int) -> Tensor:
        own = nnf.softmax(needed(done.head, HEAD)(features) / term.temperature, dim=-1)
        return term.weight * _norms(own - soft).sum() / soft.shape[1]

    return match


def _head_labels(term: HeadLabels, device: torch.device) -> Loss:
    features = to_tensor(term.features, device)  # (m, d)
    labels = torch.tensor(term.labels, dtype=torch.int64, device=device)  # (m,)
    return lambda done, _: term.weight * nnf.cross_entropy(needed(done.head, HEAD)(features), labels)


def _head_proximal(term: HeadProximal, device: torch.device) -> Loss:
    anchor, asked = to_tensor(term.rows.T, device), to_tensor(term.asks(), device)  # (d + 1, k), (d + 1, d)

    def pull(done: Pass, _: int) -> Tensor:
        logits = needed(done.head, HEAD)(asked)  # (d + 1, k)
        rows = torch.cat([logits[:-1] - logits[-1], logits[-1:]])
        return term.weight * 0.5 * (rows - anchor).square().sum()

    return pull


def _model_contrast(term: ModelContrast, device: torch.device) -> Loss:
    near, away = to_tensor(term.near, device), to_tensor(term.away, device)  # (steps, b, d) each

    def contrast(done: Pass, step: int) -> Tensor:
        z = _unit(needed(done.features, FEATURES))
        margins = (z * (_unit(away[step]) - _unit(near[step]))).sum(dim=-1) / term.temperature  # (b,)
        return term.weight * nnf.softplus(margins).mean()

    return contrast


def _class_contrast(term: ClassContrast, _device: torch.device) -> Loss:
    def contrast(done: Pass, _: int) -> Tensor:
        z, labels = _unit(needed(done.features, FEATURES)), needed(done.labels, LABELS)
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        likeness = (z @ z.T / term.temperature).masked_fill(itself, APART)  # (b, b)
        same = ((labels[:, None] == labels) & ~itself).to(z.dtype)
        shares = same / same.sum(dim=1, keepdim=True).clamp(min=1)
        return -term.weight * (shares * nnf.log_softmax(likeness, dim=1)).sum() / len(z)

    return contrast


def _unit(rows: Tensor) -> Tensor:
    return rows / _norms(rows)[..., None]


def _norms(rows: Tensor) -> Tensor:
    return (rows.square().sum(dim=-1) + NORM_FLOOR).sqrt()


def _class_target(term: ClassTarget, device: torch.device) -> Loss:
    rows_of = _rows_by_label(term, device)

    def target(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, k), (b, 1)
        return -term.weight * (rows * known * nnf.log_softmax(done.logits, dim=-1)).sum(dim=-1).mean()

    return target


def _rows_by_label(term: PrototypePull | ClassTarget, device: torch.device) -> Callable[[Pass], tuple[Tensor, Tensor]]:
    """The row of each sample's class, and whether there is one: (b, d), (b, 1)."""
    classes = torch.tensor(term.classes, dtype=torch.int64, device=device)  # (m,)
    rows = to_tensor(term.rows, device)  # (m, d)

    def look_up(done: Pass) -> tuple[Tensor, Tensor]:
        labels = needed(done.labels, LABELS)
        at = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)  # (b,)
        return rows[at], (classes[at] == labels)[:, None]

    return look_up


def _proximal(term: Proximal, device: torch.device) -> Loss:
    anchor = to_tensor(term.anchor, device)  # (p,), a view where it can be

    def pull(done: Pass, _: int) -> Tensor:
        parts = torch.split(anchor, [each.numel() for each in done.parameters])
        squares = [(w - a.view_as(w)).square().sum() for w, a in zip(done.parameters, parts, strict=True)]
        return term.weight * 0.5 * torch.stack(squares).sum()

    return pull


def _data_free(term: DataFree, _device: torch.device) -> Loss:
    return lambda done, _: term.weight * divergence(*needed(done.fakes, FAKES))


def divergence(teacher: Tensor, own: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(own)), the mean over rows: (b, k), (b, k) -> a scalar."""
    given, said = nnf.log_softmax(teacher, dim=-1), nnf.log_softmax(own, dim=-1)
    return nnf.kl_div(said, given, reduction="batchmean", log_target=True)


def to_tensor(values: Floats, device: torch.device) -> Tensor:
    """An f4 tensor of the values; on the CPU a view where the array is writable, for torch takes no other."""
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"])).to(device)


_LOSSES: dict[type[Term], Callable[[Any, torch.device], Loss]] = {
    CrossEntropy: _cross_entropy,
    BalancedCrossEntropy: _balanced_cross_entropy,
    Distill: _distill,
    LessForgetting: _distill,
    LogitGradient: _logit_gradient,
    LogitMatch: _logit_match,
    ClassTarget: _class_target,
    PrototypePull: _prototype_pull,
    PrototypeDistance: _prototype_distance,
    ModelContrast: _model_contrast,
    ClassContrast: _class_contrast,
    HeadMatch: _head_match,
    HeadLabels: _head_labels,
    HeadProximal: _head_proximal,
    Proximal: _proximal,
    DataFree: _data_free,
}
