"""The loss terms of edge_sdk.objectives in torch, differentiated by autograd; registered as in torch_forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from edge_sdk.models.torch_nets.torch_arrays import shared, to_tensor
from edge_sdk.models.torch_nets.torch_forms import Loss, Pass
from edge_sdk.objectives import (
    FEATURES,
    HEAD,
    LABELS,
    NORM_FLOOR,
    BalancedCrossEntropy,
    BoundedDistance,
    ClassContrast,
    ClassTarget,
    CrossEntropy,
    Distill,
    FeatureGradient,
    FeatureMatch,
    HeadDivergence,
    HeadLabels,
    HeadMatch,
    HeadProximal,
    LogitGradient,
    LogitMatch,
    ModelContrast,
    PrototypeDistance,
    PrototypePull,
    Proximal,
    needed,
)
from edge_sdk.objectives.on_features import APART


def cross_entropy_loss(term: CrossEntropy, _device: torch.device) -> Loss:
    """CE(y, softmax(f))."""
    return lambda done, _: term.weight * nnf.cross_entropy(done.logits, needed(done.labels, LABELS))


def balanced_cross_entropy_loss(term: BalancedCrossEntropy, device: torch.device) -> Loss:
    """CE(y, softmax(f + gamma log n))."""
    shifts = to_tensor(term.shifts(), device)  # (k,)
    return lambda done, _: term.weight * nnf.cross_entropy(done.logits + shifts, needed(done.labels, LABELS))


def logit_gradient_loss(term: LogitGradient, device: torch.device) -> Loss:
    """<gradient, f>."""
    gradient = to_tensor(term.gradient, device) * term.weight  # (steps, b, k)
    return lambda done, step: (gradient[step] * done.logits).sum() / len(done.logits)


def distill_loss(term: Distill, device: torch.device) -> Loss:
    """KL(softmax(t / E) || softmax(f / E)); also the form of LessForgetting."""
    teacher = nnf.log_softmax(to_tensor(term.logits, device) / term.temperature, dim=-1)  # (steps, b, k)

    def divergence(done: Pass, step: int) -> Tensor:
        own = nnf.log_softmax(done.logits / term.temperature, dim=-1)
        return term.weight * nnf.kl_div(own, teacher[step], reduction="batchmean", log_target=True)

    return divergence


def logit_match_loss(term: LogitMatch, device: torch.device) -> Loss:
    """|f - t| or (f - t)^2."""
    targets = to_tensor(term.logits, device)  # (steps, b, k)
    error = nnf.mse_loss if term.error == "squared" else nnf.l1_loss
    return lambda done, step: term.weight * error(done.logits, targets[step])


def feature_match_loss(term: FeatureMatch, device: torch.device) -> Loss:
    """(W R(x) - t)^2."""
    targets = to_tensor(term.targets, device)  # (steps, b, m)
    projection = None if term.projection is None else to_tensor(term.projection, device)  # (m, d)

    def match(done: Pass, step: int) -> Tensor:
        features = needed(done.features, FEATURES)
        seen = features if projection is None else features @ projection.T
        return term.weight * nnf.mse_loss(seen, targets[step])

    return match


def feature_gradient_loss(term: FeatureGradient, device: torch.device) -> Loss:
    """<gradient, R(x)>."""
    gradient = to_tensor(term.gradient, device) * term.weight  # (steps, b, d)
    return lambda done, step: (gradient[step] * needed(done.features, FEATURES)).sum() / len(done.logits)


def prototype_pull_loss(term: PrototypePull, device: torch.device) -> Loss:
    """(R(x) - C^y)^2."""
    rows_of = _rows_by_label(term, device)

    def pull(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, d), (b, 1)
        return term.weight * ((needed(done.features, FEATURES) - rows) * known).square().mean()

    return pull


def prototype_distance_loss(term: PrototypeDistance, device: torch.device) -> Loss:
    """|R(x) - H^y|."""
    rows_of = _rows_by_label(term, device)

    def distance(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, d), (b, 1)
        return term.weight * _norms((needed(done.features, FEATURES) - rows) * known).mean()

    return distance


def bounded_distance_loss(term: BoundedDistance, device: torch.device) -> Loss:
    """|B(R(x)) - H^y|."""
    rows_of = _rows_by_label(term, device)

    def distance(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, d), (b, 1)
        features = needed(done.features, FEATURES)
        if term.cube:
            features = features.clamp(-term.most, term.most)
        elif term.most < math.inf:
            features = features * (term.most / _norms(features)[:, None]).clamp(max=1)
        return term.weight * _norms((features - rows) * known).mean()

    return distance


def head_match_loss(term: HeadMatch, device: torch.device) -> Loss:
    """|softmax(G(h) / T) - q|."""
    features, soft = to_tensor(term.features, device), to_tensor(term.soft, device)  # (m, d), (m, k)

    def match(done: Pass, _: int) -> Tensor:
        own = nnf.softmax(needed(done.head, HEAD)(features) / term.temperature, dim=-1)
        return term.weight * _norms(own - soft).sum() / soft.shape[1]

    return match


def head_divergence_loss(term: HeadDivergence, device: torch.device) -> Loss:
    """KL(q || softmax(G(h) / T)), over m k."""
    features, soft = to_tensor(term.features, device), to_tensor(term.soft, device)  # (m, d), (m, k)

    def divergence(done: Pass, _: int) -> Tensor:
        own = nnf.log_softmax(needed(done.head, HEAD)(features) / term.temperature, dim=-1)
        return term.weight * nnf.kl_div(own, soft, reduction="sum") / soft.numel()

    return divergence


def head_labels_loss(term: HeadLabels, device: torch.device) -> Loss:
    """CE(y, softmax(G(h)))."""
    features = to_tensor(term.features, device)  # (m, d)
    labels = torch.tensor(term.labels, dtype=torch.int64, device=device)  # (m,)
    return lambda done, _: term.weight * nnf.cross_entropy(needed(done.head, HEAD)(features), labels)


def head_proximal_loss(term: HeadProximal, device: torch.device) -> Loss:
    """(1/2) |C - anchor|^2."""
    anchor, asked = to_tensor(term.rows.T, device), to_tensor(term.asks(), device)  # (d + 1, k), (d + 1, d)

    def pull(done: Pass, _: int) -> Tensor:
        logits = needed(done.head, HEAD)(asked)  # (d + 1, k)
        rows = torch.cat([logits[:-1] - logits[-1], logits[-1:]])
        return term.weight * 0.5 * (rows - anchor).square().sum()

    return pull


def model_contrast_loss(term: ModelContrast, device: torch.device) -> Loss:
    """log(1 + exp((cos(z, z_away) - cos(z, z_near)) / tau))."""
    near, away = to_tensor(term.near, device), to_tensor(term.away, device)  # (steps, b, d) each

    def contrast(done: Pass, step: int) -> Tensor:
        z = _unit(needed(done.features, FEATURES))
        margins = (z * (_unit(away[step]) - _unit(near[step]))).sum(dim=-1) / term.temperature  # (b,)
        return term.weight * nnf.softplus(margins).mean()

    return contrast


def class_contrast_loss(term: ClassContrast, _device: torch.device) -> Loss:
    """-mean over p of log softmax_a(cos(z_i, z_a) / tau)_p."""

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


def class_target_loss(term: ClassTarget, device: torch.device) -> Loss:
    """CE(F^y, softmax(f))."""
    rows_of = _rows_by_label(term, device)

    def target(done: Pass, _: int) -> Tensor:
        rows, known = rows_of(done)  # (b, k), (b, 1)
        return -term.weight * (rows * known * nnf.log_softmax(done.logits, dim=-1)).sum(dim=-1).mean()

    return target


def _rows_by_label(term: PrototypePull | ClassTarget, device: torch.device) -> Callable[[Pass], tuple[Tensor, Tensor]]:
    """Return the row of each sample's class, and whether it exists: (b, d), (b, 1)."""
    classes = shared(np.asarray(term.classes, np.int64)).to(device)  # (m,)
    rows = to_tensor(term.rows, device)  # (m, d)

    def look_up(done: Pass) -> tuple[Tensor, Tensor]:
        labels = needed(done.labels, LABELS)
        at = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)  # (b,)
        return rows.index_select(0, at), (classes.index_select(0, at) == labels)[:, None]

    return look_up


def proximal_loss(term: Proximal, device: torch.device) -> Loss:
    """(1/2) |w - anchor|^2."""
    anchor = to_tensor(term.anchor, device)  # (p,), a view where it can be

    def pull(done: Pass, _: int) -> Tensor:
        parts = torch.split(anchor, [each.numel() for each in done.parameters])
        squares = [(w - a.view_as(w)).square().sum() for w, a in zip(done.parameters, parts, strict=True)]
        return term.weight * 0.5 * torch.stack(squares).sum()

    return pull
