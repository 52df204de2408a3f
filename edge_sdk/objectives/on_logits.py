"""Terms on the logits of a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.objectives.base import LABELS, Seen, Shapes, Term, misfit, needed, rows_of
from edge_sdk.objectives.softmax import log_softmax, softmax

ABSENT = -1e9
"""The shift of logits of a class without samples: the class has share 0 after softmax, and the value is finite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossEntropy(Term):
    """CE(y, softmax(f)); needs labels."""

    name: ClassVar[str] = "cross-entropy"
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean over b of -log softmax(f)_y."""
        rows = -log_softmax(seen.logits)[np.arange(len(seen.logits)), needed(seen.labels, LABELS)]  # (b,)
        return float(self.weight * rows.mean())

    def slope(self, seen: Seen) -> Floats:
        """Return softmax(f) - onehot(y), over b."""
        rows = softmax(seen.logits)  # (b, k)
        rows[np.arange(len(rows)), needed(seen.labels, LABELS)] -= 1
        return _mean_slope(rows, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelLoss(CrossEntropy):
    """w_y (1 - p_y^q) / q with p = softmax(f): cross-entropy with a weight for each class, and robust to wrong labels.

    The generalised cross-entropy of Zhang and Sabuncu (2018, eq. 6).  At q = 0 it is the cross-entropy -log p_y; up to
    the mean absolute error at q = 1, samples of a label that the model finds unlikely count less.  Needs labels.  It
    shares the name of its base, which a device that asks for it needs; without a form of its own, every runtime
    minimises it by its slope.
    """

    class_weights: Floats  # (k,)
    q: float = 0.0
    """From 0 to 1."""

    def value(self, seen: Seen) -> float:
        """Return the mean over b of w_y (1 - p_y^q) / q."""
        labels = needed(seen.labels, LABELS)
        logs = log_softmax(seen.logits)[np.arange(len(labels)), labels]  # (b,)
        rows = -logs if self.q == 0 else -np.expm1(self.q * logs) / self.q
        return float(self.weight * (self.class_weights[labels] * rows).mean())

    def slope(self, seen: Seen) -> Floats:
        """Return w_y p_y^q (p - onehot(y)), over b."""
        labels, rows = needed(seen.labels, LABELS), softmax(seen.logits)  # (b, k)
        at = np.arange(len(rows))
        factors = (self.class_weights[labels] * rows[at, labels] ** self.q).astype(rows.dtype)  # (b,)
        rows[at, labels] -= 1
        return _mean_slope(rows * factors[:, None], self.weight)

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a weight."""
        found, expected = self.class_weights.shape, (shapes.classes,)
        return "" if found == expected else f"carries weights of shape {found}, the model has classes {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BalancedCrossEntropy(Term):
    """CE(y, softmax(f + gamma log n)), n the device's samples of each class (FedRoD's balanced softmax).

    A class without samples takes no part, unless gamma is 0.  Needs labels.
    """

    name: ClassVar[str] = "balanced-cross-entropy"
    counts: Floats  # (k,)
    gamma: float = 1.0
    weight: float = 1.0

    def shifts(self) -> Floats:
        """The shifts gamma log n: (k,), far below all others for a class without samples."""
        if self.gamma == 0:
            return np.zeros_like(self.counts)
        present = self.counts > 0
        logs = np.log(np.where(present, self.counts, 1))
        return np.where(present, self.gamma * logs, ABSENT).astype(self.counts.dtype)

    def value(self, seen: Seen) -> float:
        """Return the value of the cross-entropy at the raised logits."""
        return CrossEntropy(weight=self.weight).value(self._raised(seen))

    def slope(self, seen: Seen) -> Floats:
        """Return the slope of the cross-entropy at the raised logits."""
        return CrossEntropy(weight=self.weight).slope(self._raised(seen))

    def _raised(self, seen: Seen) -> Seen:
        return replace(seen, logits=seen.logits + self.shifts())

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a count."""
        found, expected = self.counts.shape, (shapes.classes,)
        return "" if found == expected else f"carries counts of shape {found}, the model has classes {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distill(Term):
    """KL( softmax(t / E) || softmax(f / E) ), without the factor E^2 (FedAL eq. 4; FedMD in FedAL's form)."""

    name: ClassVar[str] = "distill"
    logits: Floats  # (steps, b, k), the teacher's, before softmax
    temperature: float = 1.0
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean divergence."""
        teacher = log_softmax(self.logits[seen.step], self.temperature)
        rows = (np.exp(teacher) * (teacher - log_softmax(seen.logits, self.temperature))).sum(axis=-1)  # (b,)
        return float(self.weight * rows.mean())

    def slope(self, seen: Seen) -> Floats:
        """Return (softmax(f / E) - softmax(t / E)) / E, over b."""
        difference = softmax(seen.logits, self.temperature) - softmax(self.logits[seen.step], self.temperature)
        return _mean_slope(difference / np.float32(self.temperature), self.weight)

    def at(self, steps: slice) -> Term:
        """Keep the teacher's logits of these steps."""
        return replace(self, logits=self.logits[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is a row of logits for each sample of each step."""
        return _step_misfit(self.logits, shapes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LessForgetting(Distill):
    """KL to the device's own earlier predictions (FedAL eq. 5 and 6); mathematically a Distill."""

    name: ClassVar[str] = "less-forgetting"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitMatch(Term):
    """The mean over b k of |f - t|, or of (f - t)^2: logits themselves, not what softmax makes of them (FedMD)."""

    name: ClassVar[str] = "logit-match"
    logits: Floats  # (steps, b, k)
    error: Literal["absolute", "squared"] = "absolute"
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean error."""
        gaps = seen.logits - self.logits[seen.step]  # (b, k)
        return float(self.weight * np.mean(gaps**2 if self.error == "squared" else np.abs(gaps)))

    def slope(self, seen: Seen) -> Floats:
        """Return 2 (f - t), or its sign, over b k."""
        gaps = seen.logits - self.logits[seen.step]
        return _mean_slope(2 * gaps if self.error == "squared" else np.sign(gaps), self.weight / gaps.shape[1])

    def at(self, steps: slice) -> Term:
        """Keep the targets of these steps."""
        return replace(self, logits=self.logits[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is a row of logits for each sample of each step."""
        return _step_misfit(self.logits, shapes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitGradient(Term):
    """A gradient at the logits, computed elsewhere: the linear loss <gradient, f> (FedAL's adversarial term)."""

    name: ClassVar[str] = "logit-gradient"
    gradient: Floats  # (steps, b, k), per sample, divided by nothing
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean inner product."""
        return float(self.weight * (self.gradient[seen.step] * seen.logits).sum(axis=-1).mean())

    def slope(self, seen: Seen) -> Floats:
        """Return the gradient itself, over b."""
        return _mean_slope(self.gradient[seen.step], self.weight)

    def at(self, steps: slice) -> Term:
        """Keep the gradients of these steps."""
        return replace(self, gradient=self.gradient[steps])

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is a row for each sample of each step."""
        return _step_misfit(self.gradient, shapes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTarget(Term):
    """CE(F^y, softmax(f)): pulls predictions towards their class's mean (FD, Jeong et al. 2018, eq. 3).

    A sample whose class has no target adds nothing, and still counts in b.  Needs labels.
    """

    name: ClassVar[str] = "class-target"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, k) on the simplex
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean cross-entropy to the targets."""
        rows = -(self._targets(seen) * log_softmax(seen.logits)).sum(axis=-1)  # (b,)
        return float(self.weight * rows.mean())

    def slope(self, seen: Seen) -> Floats:
        """Return softmax(f) - F^y, over b."""
        targets = self._targets(seen)
        return _mean_slope(targets.sum(axis=-1, keepdims=True) * softmax(seen.logits) - targets, self.weight)

    def _targets(self, seen: Seen) -> Floats:
        """Return F^y: (b, k), zero for a class without a target."""
        at, known = rows_of(self.classes, seen.labels)
        return np.where(known[:, None], self.rows[at], np.float32(0))

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a row of k numbers."""
        return misfit("targets", "logits", self.classes, self.rows, shapes.classes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassLogitMatch(Term):
    """The mean over b k of (f - v_y)^2: logits towards a vector of their class (FedL2G-l).

    A sample whose class has no vector adds nothing, and still counts in b.  Needs labels.
    """

    name: ClassVar[str] = "class-logit-match"
    classes: Ints  # (m,) ascending
    rows: Floats  # (m, k)
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return the mean square."""
        return float(self.weight * np.mean(self._gaps(seen) ** 2))

    def slope(self, seen: Seen) -> Floats:
        """Return 2 (f - v_y), over b k."""
        gaps = self._gaps(seen)
        return _mean_slope(2 * gaps, self.weight / gaps.shape[1])

    def _gaps(self, seen: Seen) -> Floats:
        at, known = rows_of(self.classes, seen.labels)
        return np.where(known[:, None], seen.logits - self.rows[at], np.float32(0))

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a row of k numbers."""
        return misfit("vectors", "logits", self.classes, self.rows, shapes.classes)


def _mean_slope(rows: Floats, weight: float) -> Floats:
    out: Floats = rows * np.float32(weight / len(rows))
    return out


def _step_misfit(knowledge: Floats, shapes: Shapes) -> str:
    expected = (shapes.steps, shapes.batch, shapes.classes)
    if knowledge.shape == expected:
        return ""
    return f"carries knowledge of shape {knowledge.shape}, its batches need {expected}"
