"""The base class of loss terms: a term is data, with the reference mathematics for every runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints

Head: TypeAlias = Callable[[Floats], Floats]
"""A function from features (m, d) to logits (m, k)."""
On: TypeAlias = Literal["logits", "features", "head", "weights", "own"]
"""The input of a term.  `own`: an input that only a form in a runtime can compute (FedKF's samples from a generator).
Any runtime that provides one of the other inputs can minimise terms on it."""
L = TypeVar("L")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The inputs of a term on one mini-batch; a missing input raises ValueError when a term needs it."""

    logits: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))  # (b, k)
    labels: Ints | None = None  # (b,)
    step: int = 0
    features: Floats | None = None  # (b, d)
    head: Head | None = None
    weights: Floats | None = None  # (p,)
    own: Any = None
    """The input of a term on `own`; the term defines it."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes that knowledge in a term must agree with."""

    steps: int
    batch: int
    classes: int
    feature_dim: int
    parameters: int


class Term(ABC):
    """One loss term: a frozen dataclass, whose value and slope include its `weight`.

    A runtime needs only its mathematics: the value is reported, and the slope goes back through the model.  The value
    is a mean over the mini-batch's samples, unless the term defines it differently.  A term is registered under its
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
        """Return d(weighted loss) / d(what the term is on).

        Its shape is (b, k) on logits, (b, d) on features, and (p,) on weights.  On the head it is (m, k), for the m
        logits of the term's own features.  A term on something of its own defines the shape.
        """

    def at(self, steps: slice) -> Term:
        """Return the term with the knowledge of these steps alone; a term without steps returns itself."""
        del steps
        return self

    def misfit(self, shapes: Shapes) -> str:
        """Return in words why the knowledge does not fit a model and its batches, or empty if it fits."""
        del shapes
        return ""


def needed(what: L | None, why: str) -> L:
    """Return `what`.  Raises ValueError with the reason if it is None."""
    if what is None:
        raise ValueError(why)
    return what


LABELS = "this objective needs labels; public samples have none"
FEATURES = "a term on features needs them beside the logits"
HEAD = "a term on the head needs it beside the logits"
WEIGHTS = "a term on weights needs them beside the logits"


def rows_of(classes: Ints, labels: Ints | None) -> tuple[Ints, NDArray[np.bool_]]:
    """Return each sample's row, and whether it exists: classes (m,) ascending, labels (b,) -> (b,), (b,)."""
    wanted = needed(labels, LABELS)
    at = np.searchsorted(classes, wanted).clip(max=len(classes) - 1)
    return at, classes[at] == wanted


def misfit(what: str, has: str, classes: Ints, rows: Floats, width: int) -> str:
    """Return the fault of rows (m, width) of classes (m,) in words, or empty if they fit."""
    if rows.shape == (len(classes), width) and len(classes):
        return ""
    return f"carries {what} of shape {rows.shape} for {len(classes)} classes, the model has {has} of width {width}"
