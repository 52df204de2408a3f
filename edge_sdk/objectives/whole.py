"""Objectives: several terms, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.objectives.base import Seen, Term

Objective: TypeAlias = tuple[Term, ...]


def objective_loss(objective: Sequence[Term], seen: Seen) -> float:
    """The sum of all terms on one mini-batch.  Raises ValueError where a term misses what it is a function of."""
    return sum(term.value(seen) for term in objective)


def logit_gradient(objective: Sequence[Term], seen: Seen) -> Floats:
    """The gradient of the sum of its terms on the logits: (b, k); zero where there is none."""
    return _summed(objective, "logits", seen, seen.logits)


def feature_gradient(objective: Sequence[Term], seen: Seen, features: Floats) -> Floats:
    """The gradient of the sum of its terms on the features: (b, d)."""
    return _summed(objective, "features", seen, features)


def weight_gradient(objective: Sequence[Term], seen: Seen, weights: Floats) -> Floats:
    """The gradient of the sum of its terms on the weights: (p,)."""
    return _summed(objective, "weights", seen, weights)


def _summed(objective: Sequence[Term], on: str, seen: Seen, like: Floats) -> Floats:
    total = np.zeros_like(like)
    for term in objective:
        if term.on == on:
            total += term.slope(seen)
    return total


def on_features(objective: Sequence[Term]) -> bool:
    """Whether a term of it needs the features."""
    return any(term.on == "features" for term in objective)


def at_step(objective: Objective, step: int) -> Objective:
    """The objective for one step alone: what each term carries for that step becomes its step 0."""
    return tuple(term.at(slice(step, step + 1)) for term in objective)
