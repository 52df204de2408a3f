"""Combines rows and logits of several devices: by the paper's mean, or by an estimator that resists a minority.

All estimators process uploads in the order of device numbers, so that the same uploads give the same bits.

    geometric median    the point with the smallest sum of distances to all uploads; a minority of devices cannot move
                        it far, and if all uploads are nearly equal it is nearly their mean
    root gate           the mean of the devices that are right on public samples whose labels the operator knows

Weiszfeld's iteration, smoothed: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP
2022.  Logits become probabilities first: one device may write logits of any size, and probabilities are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.reductions.bag import mean_in_order
from edge_sdk.reductions.class_rows import MOST, mean_over_holders
from edge_sdk.reductions.influence import RobustTable

STEPS = 20
"""Steps of Weiszfeld's iteration."""
_SMOOTH = 1e-9
"""The minimum distance, as a share of the largest, because an upload at the median would get an infinite weight."""
_LEAST = 1e-7
"""The minimum probability whose logarithm is sent."""
_KEPT = 0.5
"""The share of the median accuracy on labelled samples that a device must reach to pass the gate."""


@dataclass(frozen=True, eq=False)
class Combining:
    """How a method combines class rows, and logits on public samples."""

    rows_by: str = "mean"
    """`mean` or `geometric-median`."""
    logits_by: str = "mean"
    """`mean`, `geometric-median` or `root-gate`."""
    min_group: int = 1
    """The minimum number of devices behind a class that is sent to others."""
    units: int = 1
    """The weight of a count of 1.  It is more than 1 if old uploads count for less (influence.py)."""
    labels: tuple[int, ...] = ()
    """The labels of the first public samples, -1 for unknown ones."""

    @classmethod
    def under(cls, table: RobustTable, units: int = 1) -> Combining:
        """Return the combination that the section [robust] selects."""
        return cls(table.rows, table.logits, table.min_group, units, table.labels)

    @property
    def plain(self) -> bool:
        """Whether logits are combined as in the papers, so that a device may take its own out of the mean."""
        return self.logits_by == "mean"

    def rows(self, uploads: Sequence[ClassRows]) -> ClassRows | None:
        """Combine class rows, or None if no class has enough holders.  Raises ValueError for no uploads."""
        by_median = self.rows_by == "geometric-median"
        combined = median_over_holders(uploads) if by_median else mean_over_holders(uploads)
        if self.units > 1:
            combined = replace(combined, counts=np.maximum(combined.counts // self.units, 1))
        if self.min_group <= 1:
            return combined
        held, holders = np.unique(np.concatenate([up.classes for up in uploads]), return_counts=True)
        enough = np.isin(combined.classes, held[holders >= self.min_group])
        if not enough.any():
            return None
        return ClassRows(classes=combined.classes[enough], rows=combined.rows[enough], counts=combined.counts[enough])

    def logits(self, uploads: Mapping[int, Floats], indices: Ints, weights: Sequence[int] = ()) -> Floats:
        """Combine logits (b, k) by device number on the public samples with these indices (b,).

        weights: of the devices, in the same order; by default all have the same weight.
        """
        if self.plain:
            return mean_in_order(uploads.values(), weights if self.units > 1 else ())
        soft = [_softmax(each) for each in uploads.values()]
        if self.logits_by == "root-gate":
            labels = np.array([self.labels[each] if each < len(self.labels) else -1 for each in indices])
            passed = through_gate(soft, labels)
            return _log(mean_in_order([soft[each] for each in passed]))
        stacked = np.stack(soft, axis=1)  # (b, n, k)
        return _log(np.stack([geometric_median(sample) for sample in stacked]))


PAPERS = Combining()
"""The means of the papers."""


def geometric_median(points: Doubles) -> Doubles:
    """Return the geometric median of points (n, d), from the median of each coordinate on."""
    found: Doubles = np.median(points, axis=0)
    for _ in range(STEPS):
        distances = np.linalg.norm(points - found, axis=1)  # (n,)
        largest = float(distances.max())
        if not largest:
            return found
        pull = 1.0 / np.maximum(distances, _SMOOTH * largest)  # (n,)
        found = (pull[:, None] * points).sum(axis=0) / pull.sum()
    return found


def median_over_holders(uploads: Sequence[ClassRows]) -> ClassRows:
    """Return per class the geometric median of its holders' rows; the counts are added up.

    Each holder weighs the same: the number of devices decides, not what they claim.  Raises ValueError for no uploads.
    """
    if not uploads:
        raise ValueError("no class rows")
    held = np.concatenate([up.classes for up in uploads])
    rows = np.concatenate([up.rows for up in uploads]).astype(np.float64)
    counts = np.concatenate([up.counts for up in uploads]).astype(np.int64)
    classes = np.unique(held)
    found, total = [], []
    for each in classes:
        there = held == each
        found.append(geometric_median(rows[there]))
        total.append(min(int(counts[there].sum()), MOST))
    return ClassRows(
        classes=classes.astype(np.int32), rows=np.stack(found).astype(np.float32), counts=np.array(total, np.int32)
    )


def through_gate(soft: Sequence[Doubles], labels: Ints) -> list[int]:
    """Return the positions of the devices that pass: at least half as often right as the median device.

    soft: each device's probabilities (b, k).  labels: (b,) of the same samples, -1 where not known.  Everybody passes
    where no label of the batch is known, or the median device is never right.
    """
    known = labels >= 0
    if not known.any():
        return list(range(len(soft)))
    right = np.array([float((each[known].argmax(axis=1) == labels[known]).mean()) for each in soft])
    return [int(each) for each in np.flatnonzero(right >= _KEPT * np.median(right))]


def _softmax(logits: Floats) -> Doubles:
    exact = logits.astype(np.float64)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    shares: Doubles = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _log(soft: NDArray[np.floating]) -> Floats:
    """Return logits whose softmax is `soft` (b, k)."""
    logits: Floats = np.log(np.maximum(soft, _LEAST)).astype(np.float32)
    return logits
