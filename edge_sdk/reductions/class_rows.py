"""Means of class rows over the devices that hold the class, for FedProto and FedSSA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.knowledge import ClassRows

MOST = 2**31 - 1
"""The largest count that the wire format can hold."""


def mean_over_holders(uploads: Sequence[ClassRows]) -> ClassRows:
    """Return per class the mean of its holders' rows, weighted by their counts; the counts are added up.

    Devices that send 1 for every count get the uniform mean.  Rows are summed in f8 in the order given, and divided
    once; a class without holders is absent.  Raises ValueError for no uploads.
    """
    classes, sums, weights = _totals(uploads)
    return _divided(classes, sums, weights)


def mean_over_others(uploads: Sequence[ClassRows]) -> list[ClassRows | None]:
    """Return for each upload the mean over the other holders of its classes, or None if no class has another holder.

    The mean is (sum - own) / (weights - own weight), all in f8.  Raises ValueError for no uploads.
    """
    classes, sums, weights = _totals(uploads)
    found: list[ClassRows | None] = []
    for up in uploads:
        at = np.searchsorted(classes, up.classes)
        left = weights[at] - up.counts  # (m,)
        rest = sums[at] - up.counts[:, None] * up.rows.astype(np.float64)  # (m, d)
        shared = left > 0
        found.append(_divided(up.classes[shared], rest[shared], left[shared]) if shared.any() else None)
    return found


def _totals(uploads: Sequence[ClassRows]) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
    """Return classes (m,), sums of count * row (m, d), and sums of counts (m,), in the order given."""
    if not uploads:
        raise ValueError("no class rows")
    classes, at = np.unique(np.concatenate([up.classes for up in uploads]), return_inverse=True)
    sums = np.zeros((len(classes), uploads[0].rows.shape[1]))
    weights = np.bincount(at, np.concatenate([up.counts for up in uploads]), len(classes)).astype(np.int64)
    done = 0
    for first in range(0, len(uploads), _AT_ONCE):
        some = uploads[first : first + _AT_ONCE]
        rows = np.concatenate([up.counts[:, None] * up.rows.astype(np.float64) for up in some])  # (n, d)
        _add_in_order(sums, at[done : done + len(rows)], rows)
        done += len(rows)
    return classes, sums, weights


_AT_ONCE = 64
"""The number of uploads whose rows are in f8 at the same time."""


def _add_in_order(sums: NDArray[np.float64], at: NDArray[np.intp], rows: NDArray[np.float64]) -> None:
    """Add each of rows (n, d) to the row of sums (m, d) given by `at` (n,); the same order gives the same bits."""
    order = np.argsort(at, kind="stable")
    present, starts = np.unique(at[order], return_index=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)


def _divided(classes: NDArray[np.int32], sums: NDArray[np.float64], weights: NDArray[np.int64]) -> ClassRows:
    rows = (sums / weights[:, None]).astype(np.float32)
    return ClassRows(classes=classes, rows=rows, counts=np.minimum(weights, MOST).astype(np.int32))


def carried_over(before: ClassRows | None, now: ClassRows) -> ClassRows:
    """Return the rows of this round, and the earlier rows of classes that no device brought in it."""
    if before is None:
        return now
    kept = ~np.isin(before.classes, now.classes)
    classes = np.concatenate([before.classes[kept], now.classes])
    order = np.argsort(classes)
    return ClassRows(
        classes=classes[order],
        rows=np.concatenate([before.rows[kept], now.rows])[order],
        counts=np.concatenate([before.counts[kept], now.counts])[order],
    )
