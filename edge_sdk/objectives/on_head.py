"""Terms on weights: on the head alone, whose input features are given and constant, or on all weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.objectives.base import HEAD, WEIGHTS, Head, On, Seen, Shapes, Term, needed
from edge_sdk.objectives.softmax import log_softmax, norms, softmax


class HeadTerm(Term):
    """A term on the head: it uses the head's logits for features of its own."""

    __slots__ = ()
    on: ClassVar[On] = "head"

    @abstractmethod
    def asks(self) -> Floats:
        """The features that go into the head: (m, d)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadMatch(HeadTerm):
    """(1/k) sum over rows of |softmax(G(h) / T) - q|, the L2 norm, not squared (FedHKD eq. 11, second term)."""

    name: ClassVar[str] = "head-match"
    features: Floats  # (m, d)
    soft: Floats  # (m, k) on the simplex
    temperature: float = 0.5
    weight: float = 1.0

    def asks(self) -> Floats:
        """The mean features of the classes."""
        return self.features

    def value(self, seen: Seen) -> float:
        """Return the sum over rows, divided by k; there is no mean over a batch."""
        gaps = softmax(needed(seen.head, HEAD)(self.features), self.temperature) - self.soft  # (m, k)
        return float(self.weight * norms(gaps).sum() / self.soft.shape[1])

    def slope(self, seen: Seen) -> Floats:
        """Return the slope at the head's logits for the term's features: (m, k)."""
        soft = softmax(needed(seen.head, HEAD)(self.features), self.temperature)
        gaps = soft - self.soft
        towards = gaps / norms(gaps)[:, None]  # d|gaps| / d(soft)
        slopes = soft * (towards - (soft * towards).sum(axis=-1, keepdims=True))
        out: Floats = slopes * np.float32(self.weight / (self.temperature * soft.shape[1]))
        return out

    def misfit(self, shapes: Shapes) -> str:
        """Check that there are as many features as predictions, each as wide as the model's own."""
        rows = len(self.features)
        found, expected = (self.features.shape, self.soft.shape), ((rows, shapes.feature_dim), (rows, shapes.classes))
        return "" if found == expected else f"carries {found}, the model needs {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadDivergence(HeadMatch):
    """The mean over m k of q log(q / softmax(G(h) / T)): FedHKD's second term as in its authors' code."""

    name: ClassVar[str] = "head-divergence"

    def value(self, seen: Seen) -> float:
        """Return KL(q || softmax(G(h) / T)), over m k; there is no mean over a batch."""
        said = log_softmax(needed(seen.head, HEAD)(self.features) / np.float32(self.temperature))
        known = np.where(self.soft > 0, np.log(np.maximum(self.soft, np.finfo(np.float32).tiny)), 0)
        return float(self.weight * (self.soft * (known - said)).sum() / self.soft.size)

    def slope(self, seen: Seen) -> Floats:
        """Return (softmax(G(h) / T) - q) / T, over m k: (m, k)."""
        soft = softmax(needed(seen.head, HEAD)(self.features), self.temperature)
        total = self.soft.sum(axis=1, keepdims=True)  # 1, up to the wire's rounding
        out: Floats = (soft * total - self.soft) * np.float32(self.weight / (self.temperature * self.soft.size))
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadLabels(HeadTerm):
    """CE(y, softmax(G(h))), the mean over features that were generated for their labels (FedGen eq. 5)."""

    name: ClassVar[str] = "head-labels"
    features: Floats  # (m, d)
    labels: Ints  # (m,)
    weight: float = 1.0

    def asks(self) -> Floats:
        """The generated features."""
        return self.features

    def value(self, seen: Seen) -> float:
        """Return the mean over m; there is no mean over a batch."""
        logits = needed(seen.head, HEAD)(self.features)  # (m, k)
        return float(-self.weight * log_softmax(logits)[np.arange(len(logits)), self.labels].mean())

    def slope(self, seen: Seen) -> Floats:
        """Return softmax - onehot, over m: (m, k)."""
        rows = softmax(needed(seen.head, HEAD)(self.features))
        rows[np.arange(len(rows)), self.labels] -= 1
        out: Floats = rows * np.float32(self.weight / len(rows))
        return out

    def misfit(self, shapes: Shapes) -> str:
        """Check that there are as many labels as features, each as wide as the model's own."""
        expected = (len(self.labels), shapes.feature_dim)
        return "" if self.features.shape == expected else f"carries {self.features.shape}, the model needs {expected}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadProximal(HeadTerm):
    """(1/2) |C - anchor|^2 over the rows of the last layer, bias included (FedClassAvg's L_R).

    The head's logits for a feature of zeros are its bias; those for each unit vector add one column of weights.
    """

    name: ClassVar[str] = "head-proximal"
    rows: Floats  # (k, d + 1), the bias as last column
    weight: float = 1.0

    def asks(self) -> Floats:
        """The unit vectors, and zeros: (d + 1, d)."""
        return _units(self.rows.shape[1] - 1)

    def value(self, seen: Seen) -> float:
        """Return half the squared distance; there is no mean over a batch."""
        return float(self.weight * 0.5 * np.sum(self._gaps(seen) ** 2))

    def slope(self, seen: Seen) -> Floats:
        """Return slopes with which each weight column and the bias, part of every logit, get their gap: (d + 1, k)."""
        gaps = self._gaps(seen)
        slopes = gaps.T.copy()  # (d + 1, k)
        slopes[-1] -= gaps[:, :-1].sum(axis=1)
        out: Floats = slopes * np.float32(self.weight)
        return out

    def _gaps(self, seen: Seen) -> Floats:
        """Return C - anchor: (k, d + 1)."""
        return layer_of(needed(seen.head, HEAD), self.rows.shape[1] - 1) - self.rows

    def misfit(self, shapes: Shapes) -> str:
        """Check that each class has a row, one wider than the features."""
        expected = (shapes.classes, shapes.feature_dim + 1)
        return "" if self.rows.shape == expected else f"carries {self.rows.shape}, the model needs {expected}"


def layer_of(head: Head, width: int) -> Floats:
    """Return the rows of a linear head on features of this width, the bias as last column: (k, d + 1)."""
    logits = head(_units(width))  # (d + 1, k)
    out: Floats = np.vstack([logits[:-1] - logits[-1], logits[-1:]]).T
    return out


def _units(width: int) -> Floats:
    return np.eye(width + 1, width, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proximal(Term):
    """(1/2) |w - anchor|^2 over all trainable scalars: weights stay near where they were (FedProx eq. 2)."""

    name: ClassVar[str] = "proximal"
    on: ClassVar[On] = "weights"
    anchor: Floats  # (p,)
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return half the squared distance; there is no mean over a batch."""
        return float(self.weight * 0.5 * np.sum((needed(seen.weights, WEIGHTS) - self.anchor) ** 2))

    def slope(self, seen: Seen) -> Floats:
        """Return w - anchor: (p,)."""
        out: Floats = np.float32(self.weight) * (needed(seen.weights, WEIGHTS) - self.anchor)
        return out

    def misfit(self, shapes: Shapes) -> str:
        """Check that there is one scalar for each of the model's."""
        found, expected = self.anchor.shape, (shapes.parameters,)
        return "" if found == expected else f"carries weights of shape {found}, the model has {expected}"
