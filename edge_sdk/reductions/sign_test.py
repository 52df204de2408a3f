"""Decides whether a model is worse than another one on the same samples."""

from __future__ import annotations

from math import comb
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.01
"""A model is refused only if chance explains its drop with less than this probability.

Every round compares again, and the served model is the best of many: at 0.05 a healthy federation refused models and
paused.
"""
LEAST_SAMPLES = 7
"""With fewer held-out samples no drop is beyond chance: 0.5 to the sixth power is above CHANCE."""

Right: TypeAlias = NDArray[np.bool_]
"""Which held-out samples a model classifies correctly: (n,)."""


def is_worse(before: Right, after: Right, max_drop: float) -> bool:
    """Return whether accuracy fell by more than `max_drop`, and further than chance explains.

    A one-sided, exact sign test on the samples that only one of the models classifies correctly: if both were equally
    good, losses and wins would be equally likely.
    """
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    return (lost - won) / len(before) > max_drop and at_least(lost, lost + won) < CHANCE


def at_least(count: int, of: int) -> float:
    """Return the probability of at least `count` heads in `of` throws of a fair coin."""
    ways: int = sum(comb(of, heads) for heads in range(count, of + 1))
    return ways / (1 << of)
