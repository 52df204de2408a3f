"""Draws that keep the mix of classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError


def hold_out(y: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Indices of the rest and of a part that holds this fraction of every class, both ascending."""
    held = np.concatenate(
        [rng.permutation(np.flatnonzero(y == k))[: round(fraction * int((y == k).sum()))] for k in np.unique(y)]
    )
    return _without(len(y), held), np.sort(held)


def draw_evenly(y: Ints, count: int, rng: np.random.Generator) -> Ints:
    """`count` indices, ascending, whose classes are mixed as those of y are: each class within one of its share.

    Sorted by class, in random order within each, every (n / count)-th sample is taken, from a random one on.
    """
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    at = (np.arange(count) * len(y) + rng.integers(max(len(y), 1))) // max(count, 1)
    return np.sort(order[at])


def draw_equally(y: Ints, rng: np.random.Generator) -> Ints:
    """Indices, ascending, of as many samples of each class as the rarest one has."""
    classes, counts = np.unique(y, return_counts=True)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == k))[: counts.min()] for k in classes]))


def cut(y: Ints, shares: Sequence[float], rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Indices of three parts of a device's samples y (n,), each ascending: to train, validate and test on.

    A share above 0 gives at least one sample; what rounding leaves over is trained on.  Each part has the mix of
    classes of the whole, as far as its size allows.  Raises UsageError where nothing is left to train on.
    """
    validation, test = (max(1, round(len(y) * share / sum(shares))) if share else 0 for share in shares[1:])
    if validation + test >= len(y):
        raise UsageError(
            f"data.split: a device with {len(y)} samples cannot be cut {':'.join(f'{share:g}' for share in shares)}; "
            "raise partition.min_samples"
        )
    held = draw_evenly(y, validation + test, rng)
    tested = draw_evenly(y[held], test, rng)
    return _without(len(y), held), held[_without(len(held), tested)], held[tested]


def _without(count: int, left_out: Ints) -> Ints:
    """0..count-1 but for some."""
    mask = np.ones(count, bool)
    mask[left_out] = False
    return np.flatnonzero(mask)
