"""Terms on the head alone: what they ask it about is given, and constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.objectives.base import HEAD, Floats, On, Seen, Shapes, Term, needed
from edge_sdk.objectives.softmax import norms, softmax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadMatch(Term):
    """(1/k) sum over rows of |softmax(G(h) / T) - q|, the L2 norm, not squared (FedHKD eq. 11, second term)."""

    name: ClassVar[str] = "head-match"
    on: ClassVar[On] = "head"
    features: Floats  # (m, d)
    soft: Floats  # (m, k) on the simplex
    temperature: float = 0.5
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """The sum over rows, over k; no mean over a batch."""
        gaps = softmax(needed(seen.head, HEAD)(self.features), self.temperature) - self.soft  # (m, k)
        return float(self.weight * norms(gaps).sum() / self.soft.shape[1])

    def slope(self, seen: Seen) -> Floats:
        """At the logits that the head gives for the term's features: (m, k)."""
        soft = softmax(needed(seen.head, HEAD)(self.features), self.temperature)
        gaps = soft - self.soft
        towards = gaps / norms(gaps)[:, None]  # d|gaps| / d(soft)
        slopes = soft * (towards - (soft * towards).sum(axis=-1, keepdims=True))
        out: Floats = slopes * np.float32(self.weight / (self.temperature * soft.shape[1]))
        return out

    def misfit(self, shapes: Shapes) -> str:
        """As many features as predictions, each as wide as the model's own."""
        rows = len(self.features)
        found, expected = (self.features.shape, self.soft.shape), ((rows, shapes.feature_dim), (rows, shapes.classes))
        return "" if found == expected else f"carries {found}, the model needs {expected}"
