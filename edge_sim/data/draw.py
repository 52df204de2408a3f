"""Random draws that keep the proportions of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError


def hold_out(y: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the indices of the rest and of a part with this fraction of every class, both ascending."""
    held = np.concatenate(
        [rng.permutation(np.flatnonzero(y == k))[: round(fraction * int((y == k).sum()))] for k in np.unique(y)]
    )
    return _without(len(y), held), np.sort(held)


def draw_evenly(y: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return `count` ascending indices with the class proportions of y: each class within one of its share.

    The samples are sorted by class and shuffled in each; every (n / count)-th is taken, from a random start.
    """
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    at = (np.arange(count) * len(y) + rng.integers(max(len(y), 1))) // max(count, 1)
    return np.sort(order[at])


def draw_equally(y: Ints, rng: np.random.Generator) -> Ints:
    """Return ascending indices of equally many samples of each class: as many as the rarest class has."""
    classes, counts = np.unique(y, return_counts=True)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == k))[: counts.min()] for k in classes]))


def cut(y: Ints, shares: Sequence[float], rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return the ascending indices of three parts of a device's samples y (n,): to train, validate and test on.

    A share above 0 gives at least one sample; the remainder of rounding goes to training.  Each part has the mix of
    classes of the whole, as far as its size allows.  Raises UsageError where nothing is left to train on.
    """
    validation, test = check_cut(len(y), tuple(shares))
    if not validation + test:
        return np.arange(len(y)), np.zeros(0, np.int64), np.zeros(0, np.int64)
    held = draw_held(y, shares, rng)
    tested = draw_evenly(y[held], test, rng)
    return _without(len(y), held), held[_without(len(held), tested)], held[tested]


def draw_held(y: Ints, shares: Sequence[float], rng: np.random.Generator) -> Ints:
    """Return the ascending indices of the samples that `cut` leaves for validation and test, which it draws first."""
    return draw_evenly(y, sum(check_cut(len(y), tuple(shares))), rng)


@lru_cache(maxsize=1024)
def check_cut(count: int, shares: tuple[float, ...]) -> tuple[int, int]:
    """Return how many of a device's samples are to validate and to test on.  Raises UsageError like `cut`."""
    validation, test = (max(1, round(count * share / sum(shares))) if share else 0 for share in shares[1:])
    if validation + test >= count:
        raise UsageError(
            f"data.split: a device with {count} samples cannot be cut {':'.join(f'{share:g}' for share in shares)}; "
            "raise partition.min_samples"
        )
    return validation, test


def _without(count: int, left_out: Ints) -> Ints:
    """Return the numbers 0..count-1 without those of `left_out`."""
    mask = np.ones(count, bool)
    mask[left_out] = False
    return np.flatnonzero(mask)
