"""Decides whether a model is worse than the served one on held-out samples: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.device.training.workbench import Workbench, slices

CHANCE = 0.01
"""A model is refused only if chance explains its drop with less than this probability.

Every round compares again, and the served model is the best of many: at 0.05 a healthy federation refused models and
paused.
"""
LEAST_SAMPLES = 7
"""With fewer held-out samples no drop is beyond chance: 0.5 to the sixth power is above CHANCE."""

Right = NDArray[np.bool_]
"""Which held-out samples a model classifies correctly: (n,)."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A part of the device's data that is not trained on."""

    name: str
    """The part of LocalData: validation, local_test or test."""
    metric: str
    """The name of the accuracy on it."""
    x: Floats  # (n, c, h, w), preprocessed
    y: Ints  # (n,)

    @property
    def words(self) -> str:
        """Describes the samples in lines for the owner."""
        return f"{len(self.y)} held-out samples" + (" of all classes (test)" if self.name == "test" else " of its own")


def held_out_of(bench: Workbench) -> tuple[HeldOut, ...]:
    """Return the parts with at least LEAST_SAMPLES: the device's own, and last `test`, as the owner gave it."""
    names = {"validation_accuracy": "validation", "local_accuracy": "local_test"}
    parts = [
        HeldOut(name, metric, *bench.held_out[metric]) for metric, name in names.items() if metric in bench.held_out
    ]
    if bench.test is not None and bench.data.test is not None:
        parts.append(HeldOut("test", "accuracy", bench.test, bench.data.test.y))
    return tuple(part for part in parts if len(part.y) >= LEAST_SAMPLES)


def compared_on(parts: Sequence[HeldOut]) -> tuple[HeldOut, ...]:
    """Return the parts that models are compared on: the first of the device's own, and `test`."""
    own = [part for part in parts if part.name != "test"]
    return (*own[:1], *parts[len(own) :])


def missing_classes(parts: Sequence[HeldOut], classes: int) -> int:
    """Return the number of the `classes` without a sample in any part."""
    return classes - len(np.unique(np.concatenate([part.y for part in parts])))


def right_on(logits: Callable[[Floats], Floats], held: HeldOut) -> Generator[None, None, Right]:
    """Return which samples are classified correctly, with a pause after each batch; NaN is never right."""
    found = np.zeros(len(held.y), np.bool_)
    for part in slices(len(held.y)):
        rows = logits(held.x[part])
        found[part] = (rows.argmax(axis=1) == held.y[part]) & np.isfinite(rows).all(axis=1)
        yield
    return found


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
