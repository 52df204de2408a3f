"""What a loss term is: data, with the reference mathematics that every runtime is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Floats, Ints

Head: TypeAlias = Callable[[Floats], Floats]
"""Features (m, d) -> logits (m, k)."""
On: TypeAlias = Literal["logits", "features", "head", "weights", "own"]
"""What a term is a function of.  `own`: of something that only a form of its own in a runtime can give (FedKF's samples
that a generator makes up); all others are minimised by any runtime that can give what they are on."""
L = TypeVar("L")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a term may look at on one mini-batch; what it needs and is missing raises ValueError."""

    logits: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))  # (b, k)
    labels: Ints | None = None  # (b,)
    step: int = 0
    features: Floats | None = None  # (b, d)
    head: Head | None = None
    weights: Floats | None = None  # (p,)
    own: Any = None
    """What a term on `own` is a function of; it says itself what that is."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes that knowledge in a term has to agree with."""

    steps: int
    batch: int
    classes: int
    feature_dim: int
    parameters: int


class Term(ABC):
    """One loss term: a frozen dataclass, whose `weight` is in what it gives.

    Its mathematics is all that a runtime needs: the value is reported, and the slope goes back through the model.  The
    value is a mean over the mini-batch's samples, unless the term says otherwise.  A term is registered under its
    `name` in the entry-point group `edge_sdk.terms`.
    """

    __slots__ = ()
    name: ClassVar[str]
    on: ClassVar[On] = "logits"

    @abstractmethod
    def value(self, seen: Seen) -> float:
        """The weighted loss on one mini-batch."""

    @abstractmethod
    def slope(self, seen: Seen) -> Floats:
        """d(weighted loss) / d(what the term is on).

        On logits: (b, k); on features: (b, d); on the head: (m, k), of the m logits that it gives for the term's own
        features; on weights: (p,); on its own: as the term says.
        """

    def at(self, steps: slice) -> Term:
        """What the term carries for these steps alone; one that carries the same for all steps is its own."""
        del steps
        return self

    def misfit(self, shapes: Shapes) -> str:
        """What of the knowledge in it does not fit a model and its batches, in words; empty: it fits."""
        del shapes
        return ""


def needed(what: L | None, why: str) -> L:
    """It, of any runtime.  Raises ValueError, which says why, where there is none."""
    if what is None:
        raise ValueError(why)
    return what


LABELS = "this objective needs labels; public samples have none"
FEATURES = "a term on features needs them beside the logits"
HEAD = "a term on the head needs it beside the logits"
WEIGHTS = "a term on weights needs them beside the logits"
