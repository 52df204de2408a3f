"""Terms on the weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.objectives.base import WEIGHTS, On, Seen, Shapes, Term, needed


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
