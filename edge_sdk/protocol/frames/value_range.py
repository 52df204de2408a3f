"""Checks whether all numbers of every sent or received tensor are finite, or within bounds.

For short arrays the sum of squares comes first, because it takes a third of the time of a minimum and a maximum.  The
sum is NaN or infinite if any number is, and at least as large as the square of each number.  Large numbers may also
make it infinite: then, and for long arrays, minimum and maximum decide.  They are NaN if any number is.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHORT = 8192
"""The sum of squares is used up to this size; for longer arrays a linear algebra library may start threads."""

_RANGES: dict[int, tuple[Callable[[], object], tuple[float, float]]] = {}
"""The ranges of long arrays in received frames, by `id` of the array.  Each array is checked twice, against the
protocol's bounds when it is decoded, and against the federation's once its group is durable.  Read-only arrays cannot
change in between: looking twice makes a round of FedAvg 1.08 times as long (mlp, 20 devices, `cohort`)."""
_REMEMBERED = 512
"""The maximum number of remembered ranges: two groups of uploads."""
_SHARED: dict[int, tuple[Callable[[], object], tuple[float, float]]] = {}
"""The ranges of arrays that many devices of a simulation share, by `id`: each checks them when it wakes."""
_MOST_SHARED = 16


def note_shared(array: NDArray[Any]) -> None:
    """Remember the range of an array that its owner never changes."""
    found = weakref.ref(array), min_max(array)
    while len(_SHARED) >= _MOST_SHARED:
        del _SHARED[next(iter(_SHARED))]
    _SHARED[id(array)] = found


def all_finite(array: NDArray[Any]) -> bool:
    """Whether all numbers are finite; allocates no second array of that size."""
    if array.dtype.kind != "f" or _sum_of_squares(array) < math.inf:
        return True
    low, high = min_max(array)
    return math.isfinite(low) and math.isfinite(high)


def all_within(array: NDArray[Any], most: float) -> bool:
    """Whether every number is from -most to most; False if any is NaN."""
    if _sum_of_squares(array) < most * most / 2:  # half leaves room for the sum's rounding
        return True
    low, high = min_max(array)
    return low >= -most and high <= most


def min_max(array: NDArray[Any]) -> tuple[float, float]:
    """Return the smallest and the largest number; both are NaN if any number is."""
    constant = array.size > _SHORT and not array.flags.writeable and isinstance(array.base, (bytes, memoryview))
    known = _RANGES.get(id(array)) if constant else _SHARED.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    found = float(np.minimum.reduce(array, axis=None)), float(np.maximum.reduce(array, axis=None))
    if constant:
        if len(_RANGES) >= _REMEMBERED:
            _RANGES.clear()
        _RANGES[id(array)] = weakref.ref(array), found
    return found


def _sum_of_squares(array: NDArray[Any]) -> float:
    """Return the sum of squares of a short array of floats, or NaN, for which every comparison is false."""
    return float(np.vdot(array, array)) if array.size <= _SHORT and array.dtype.kind == "f" else math.nan
