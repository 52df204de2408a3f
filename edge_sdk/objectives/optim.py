"""The optimiser's settings and the part of the model that a fit trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["all", "body", "head"]
"""What a fit trains: the whole model, what stands in front of its last layer, or its last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimiser's settings; its moments belong to the model and persist between fits."""

    kind: str = "adam"
    """The optimiser: sgd or adam (beta 0.9, 0.999, epsilon 1e-8)."""
    learning_rate: float = 1e-3
    momentum: float = 0.0
    """The momentum of sgd."""
