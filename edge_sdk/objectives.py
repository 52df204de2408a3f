"""Loss terms as data, with their reference mathematics in numpy.

A term says what to minimise; a model runtime says which terms it can.  Every term here is a function of the logits of
one mini-batch, or else of its features (FEATURE_TERMS), of the head alone (HEAD_TERMS) or of the weights alone
(WEIGHT_TERMS), so the reference gives its value and its gradient with respect to those; the torch runtime computes the
same loss with autograd, equal to 1e-5.
The total loss is the batch mean of the weighted sum.

Knowledge that a term carries is aligned with the batches of the fit that it is used in: first axis the step, second the
sample.  Knowledge of classes is looked up by label instead, and serves every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
L = TypeVar("L")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossEntropy:
    """CE(y, softmax(f)); needs labels."""

    name: ClassVar[str] = "cross-entropy"
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distill:
    """KL( softmax(t / E) || softmax(f / E) ), without the factor E^2 (FedAL eq. 4; FedMD in FedAL's form)."""

    name: ClassVar[str] = "distill"
    logits: Floats  # (steps, b, k), the teacher's, before softmax
    temperature: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LessForgetting:
    """KL to the device's own earlier predictions (FedAL eq. 5 and 6); mathematically a Distill."""

    name: ClassVar[str] = "less-forgetting"
    logits: Floats  # (steps, b, k), of the snapshot
    temperature: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitGradient:
    """A gradient at the logits, computed elsewhere: the linear loss <gradient, f> (FedAL's adversarial term)."""

    name: ClassVar[str] = "logit-gradient"
    gradient: Floats  # (steps, b, k), per sample, divided by nothing
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrototypePull:
    """The mean over B d of (R(x) - C^y)^2: features towards the prototype of their class (FedProto eq. 8).

    The reduction is that of its authors' code; the squared L2 norm per sample is d times as much.  A sample whose class
    has no prototype adds nothing, and still counts in B.  A function of the features alone: it trains the extractor and
    never the head.  Needs labels.
    """

    name: ClassVar[str] = "prototype-pull"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, d)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTarget:
    """CE(F^y, softmax(f)): predictions towards the mean prediction of their class (FD, Jeong et al. 2018, eq. 3).

    A sample whose class has no target adds nothing, and still counts in b.  Needs labels.
    """

    name: ClassVar[str] = "class-target"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, k) on the simplex
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proximal:
    """(1/2) |w - anchor|^2 over all trainable scalars: weights stay near where they were (FedProx eq. 2)."""

    name: ClassVar[str] = "proximal"
    anchor: Floats  # (p,)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrototypeDistance:
    """The mean over b of |R(x) - H^y|, the L2 norm, not squared (FedHKD eq. 11, third term).

    A sample whose class has no prototype adds nothing, and still counts in b.  It trains the extractor and never the
    head.  Needs labels.
    """

    name: ClassVar[str] = "prototype-distance"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, d)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadMatch:
    """(1/k) sum over rows of |softmax(G(h) / T) - q|, the L2 norm, not squared (FedHKD eq. 11, second term).

    A function of the head alone: the features that it is asked about are given, and constant.
    """

    name: ClassVar[str] = "head-match"
    features: Floats  # (m, d)
    soft: Floats  # (m, k) on the simplex
    temperature: float = 0.5
    weight: float = 1.0


Term: TypeAlias = (
    CrossEntropy
    | Distill
    | LessForgetting
    | LogitGradient
    | PrototypePull
    | PrototypeDistance
    | HeadMatch
    | ClassTarget
    | Proximal
)
Objective: TypeAlias = tuple[Term, ...]
Head: TypeAlias = Callable[[Floats], Floats]
"""Features (m, d) -> logits (m, k)."""

FEATURE_TERMS = frozenset({PrototypePull.name, PrototypeDistance.name})
"""Names of the terms that are functions of the features: without effect where the extractor is frozen."""

HEAD_TERMS = frozenset({HeadMatch.name})
"""Names of the terms that are functions of the head alone."""

NORM_FLOOR = 1e-12
"""Under the root of a norm that is differentiated, so that its gradient is 0 at 0 and not NaN."""

WEIGHT_TERMS = frozenset({Proximal.name})
"""Names of the terms that are functions of the weights alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """How to step; the optimiser's moments belong to the model and live on between fits."""

    kind: str = "adam"
    """sgd or adam (beta 0.9, 0.999, epsilon 1e-8)."""
    learning_rate: float = 1e-3
    momentum: float = 0.0
    """For sgd."""


def log_softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Log softmax(logits / temperature) over the last axis, shifted so that it cannot overflow."""
    scaled = logits / np.float32(temperature)
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    out: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """softmax(logits / temperature) over the last axis."""
    out: Floats = np.exp(log_softmax(logits, temperature))
    return out


def term_loss(
    term: Term,
    logits: Floats,
    labels: Ints | None,
    step: int,
    features: Floats | None = None,
    *,
    head: Head | None = None,
    weights: Floats | None = None,
) -> float:
    """The weighted value of one term on one mini-batch, mean over its samples.

    logits (b, k), labels (b,), features (b, d), which only the terms of FEATURE_TERMS need, the head, only those of
    HEAD_TERMS, weights (p,), only those of WEIGHT_TERMS.  Raises ValueError where any of them is needed and missing.
    """
    if isinstance(term, HeadMatch):
        gaps = softmax(required_head(head)(term.features), term.temperature) - term.soft  # (m, k)
        return float(term.weight * norms(gaps).sum() / term.soft.shape[1])
    if isinstance(term, PrototypeDistance):
        return float(term.weight * np.mean(norms(prototype_gaps(term, required_features(features), labels))))
    if isinstance(term, PrototypePull):
        return float(term.weight * np.mean(prototype_gaps(term, required_features(features), labels) ** 2))
    if isinstance(term, Proximal):
        return float(term.weight * 0.5 * np.sum((required_weights(weights) - term.anchor) ** 2))
    if isinstance(term, CrossEntropy):
        rows = -log_softmax(logits)[np.arange(len(logits)), required_labels(labels)]  # (b,)
    elif isinstance(term, (Distill, LessForgetting)):
        teacher = log_softmax(term.logits[step], term.temperature)
        rows = (np.exp(teacher) * (teacher - log_softmax(logits, term.temperature))).sum(axis=-1)  # (b,)
    elif isinstance(term, ClassTarget):
        rows = -(class_targets(term, labels) * log_softmax(logits)).sum(axis=-1)  # (b,)
    else:
        rows = (term.gradient[step] * logits).sum(axis=-1)  # (b,)
    return float(term.weight * rows.mean())


def term_gradient(term: Term, logits: Floats, labels: Ints | None, step: int) -> Floats:
    """d(weighted mean loss)/d(logits) of one term on one mini-batch: (b, k); zero for a term on anything else."""
    if isinstance(term, (PrototypePull, PrototypeDistance, HeadMatch, Proximal)):
        return np.zeros_like(logits)
    if isinstance(term, CrossEntropy):
        rows = softmax(logits)  # (b, k)
        rows[np.arange(len(logits)), required_labels(labels)] -= 1
    elif isinstance(term, (Distill, LessForgetting)):
        difference = softmax(logits, term.temperature) - softmax(term.logits[step], term.temperature)
        rows = difference / np.float32(term.temperature)
    elif isinstance(term, ClassTarget):
        targets = class_targets(term, labels)
        rows = targets.sum(axis=-1, keepdims=True) * softmax(logits) - targets
    else:
        rows = term.gradient[step]
    out: Floats = rows * np.float32(term.weight / len(logits))
    return out


def feature_gradient(term: PrototypePull | PrototypeDistance, features: Floats, labels: Ints | None) -> Floats:
    """d(weighted mean loss)/d(features) of a term on features on one mini-batch: (b, d)."""
    gaps = prototype_gaps(term, features, labels)
    if isinstance(term, PrototypeDistance):
        away: Floats = gaps / norms(gaps)[:, None] * np.float32(term.weight / len(gaps))
        return away
    out: Floats = gaps * np.float32(2 * term.weight / gaps.size)
    return out


def head_gradient(term: HeadMatch, head: Head) -> Floats:
    """d(weighted loss)/d(logits that the head gives for the term's features): (m, k)."""
    soft = softmax(head(term.features), term.temperature)
    gaps = soft - term.soft
    towards = gaps / norms(gaps)[:, None]  # d|gaps| / d(soft)
    slopes = soft * (towards - (soft * towards).sum(axis=-1, keepdims=True))
    out: Floats = slopes * np.float32(term.weight / (term.temperature * soft.shape[1]))
    return out


def norms(rows: Floats) -> Floats:
    """The L2 norm of each row: (n, d) -> (n,), never quite 0."""
    out: Floats = np.sqrt((rows**2).sum(axis=-1) + np.float32(NORM_FLOOR))
    return out


def prototype_gaps(term: PrototypePull | PrototypeDistance, features: Floats, labels: Ints | None) -> Floats:
    """R(x) - C^y: (b, d), zero for a class without a prototype."""
    at, known = _rows_by_label(term, labels)
    return np.where(known[:, None], features - term.rows[at], 0)


def class_targets(term: ClassTarget, labels: Ints | None) -> Floats:
    """F^y: (b, k), zero for a class without a target."""
    at, known = _rows_by_label(term, labels)
    return np.where(known[:, None], term.rows[at], np.float32(0))


def _rows_by_label(
    term: PrototypePull | PrototypeDistance | ClassTarget, labels: Ints | None
) -> tuple[Ints, NDArray[np.bool_]]:
    """Which row belongs to each sample, and whether there is one: (b,), (b,)."""
    wanted = required_labels(labels)
    at = np.searchsorted(term.classes, wanted).clip(max=len(term.classes) - 1)
    return at, term.classes[at] == wanted


def weight_gradient(objective: Sequence[Term], weights: Floats) -> Floats:
    """d(sum of its terms on the weights)/d(weights): weights (p,) -> (p,)."""
    total = np.zeros_like(weights)
    for term in objective:
        if isinstance(term, Proximal):
            total += np.float32(term.weight) * (weights - term.anchor)
    return total


def objective_loss(
    objective: Sequence[Term],
    logits: Floats,
    labels: Ints | None,
    step: int,
    features: Floats | None = None,
    *,
    head: Head | None = None,
    weights: Floats | None = None,
) -> float:
    """The sum of all terms on one mini-batch."""
    return sum(term_loss(term, logits, labels, step, features, head=head, weights=weights) for term in objective)


def objective_gradient(objective: Sequence[Term], logits: Floats, labels: Ints | None, step: int) -> Floats:
    """The gradient of the sum of all terms with respect to the logits: (b, k)."""
    total = np.zeros_like(logits)
    for term in objective:
        total += term_gradient(term, logits, labels, step)
    return total


def required_labels(labels: L | None) -> L:
    """The labels, of any runtime.  Raises ValueError where there are none."""
    if labels is None:
        raise ValueError("this objective needs labels; public samples have none")
    return labels


def required_features(features: L | None) -> L:
    """The features, of any runtime.  Raises ValueError where there are none."""
    if features is None:
        raise ValueError("a term on features needs them beside the logits")
    return features


def required_head(head: L | None) -> L:
    """The head, of any runtime.  Raises ValueError where there is none."""
    if head is None:
        raise ValueError("a term on the head needs it beside the logits")
    return head


def required_weights(weights: L | None) -> L:
    """The weights, of any runtime.  Raises ValueError where there are none."""
    if weights is None:
        raise ValueError("a term on weights needs them beside the logits")
    return weights


def on_features(objective: Objective) -> bool:
    """Whether a term of it needs the features."""
    return any(term.name in FEATURE_TERMS for term in objective)


def at_step(objective: Objective, step: int) -> Objective:
    """The objective for one step alone: what each term carries for that step becomes its step 0."""
    return tuple(_term_at(term, slice(step, step + 1)) for term in objective)


def _term_at(term: Term, steps: slice) -> Term:
    if isinstance(term, (Distill, LessForgetting)):
        return replace(term, logits=term.logits[steps])
    if isinstance(term, LogitGradient):
        return replace(term, gradient=term.gradient[steps])
    return term
