"""Whether a device's samples have changed since it joined: label shift and feature shift, by simple tests.

What is kept of the first samples is bounded: their number, those of each class, and mean and variance of CHUNKS parts
of the inputs.  What leaves the device is at most two numbers, and only those that its owner allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.at_rest.digests import checked_json, json_with_digest
from edge_sdk.at_rest.files import replace_durably
from edge_sdk.data import LocalData
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Damaged

CHUNKS = 64
"""An input is cut into so many parts of about equal length; each counts with its mean."""
MOST_READ = 500
"""The most samples whose inputs are read, evenly spaced."""
LEAST = 20
"""With fewer samples on either side, nothing is said."""
LABELS, FEATURES = 0.25, 0.5
"""From here on a shift is told: the population stability index, and a difference of means in standard deviations."""
DEVIATIONS = 4.5
"""A difference of means counts beyond so many standard errors: about 1 in 2,000 for the largest of CHUNKS by chance."""
_FILE = "first-samples.json"


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is kept of a device's samples."""

    counts: tuple[int, ...]
    """Samples of each class: (k,)."""
    read: int
    """The samples whose inputs were read."""
    means: tuple[float, ...]
    """The mean of each part of the inputs: (CHUNKS,) or fewer."""
    variances: tuple[float, ...]


def sketch_of(inputs: Floats, counts: tuple[int, ...]) -> Sketch:
    """Return the sketch of samples; inputs: (n, c, h, w), counts: samples of each class (k,)."""
    some = inputs[:: max(1, math.ceil(len(inputs) / MOST_READ))].reshape(-1, int(np.prod(inputs.shape[1:])))  # (m, d)
    starts = np.unique(np.linspace(0, some.shape[1], CHUNKS, endpoint=False).astype(int))  # (p,)
    lengths = np.diff([*starts, some.shape[1]])  # (p,)
    parts = np.add.reduceat(some.astype(np.float64), starts, axis=1) / lengths  # (m, p)
    return Sketch(counts, len(some), tuple(map(float, parts.mean(axis=0))), tuple(map(float, parts.var(axis=0))))


def label_shift(first: Sketch, now: Sketch) -> float:
    """Return the population stability index of the shares of the classes, or 0 if chance explains it.

    sum (q - p) ln(q / p) over the classes that either side has, each with half a sample more.  Times n m / (n + m) it
    is about chi-square: it counts beyond four deviations above its mean.
    """
    pairs = np.array([each for each in zip(first.counts, now.counts, strict=True) if any(each)], np.float64)  # (c, 2)
    n, m, freedom = sum(first.counts), sum(now.counts), len(pairs) - 1
    if min(n, m) < LEAST or freedom < 1:
        return 0.0
    p, q = ((pairs + 0.5) / (pairs + 0.5).sum(axis=0)).T  # (c,) each
    index = float(((q - p) * np.log(q / p)).sum())
    return index if index * n * m / (n + m) > freedom + 4 * math.sqrt(2 * freedom) else 0.0


def feature_shift(first: Sketch, now: Sketch) -> float:
    """Return the largest difference of a mean in standard deviations of the first samples.

    0 if chance explains it.
    """
    if min(first.read, now.read) < LEAST or len(first.means) != len(now.means):
        return 0.0
    gaps = np.abs(np.subtract(now.means, first.means))  # (p,)
    errors = np.sqrt(np.divide(first.variances, first.read) + np.divide(now.variances, now.read)) + 1e-12
    sizes = gaps / np.sqrt(np.array(first.variances) + 1e-12)
    return float(np.where(gaps > DEVIATIONS * errors, sizes, 0.0).max(initial=0.0))


class DriftWatch:
    """Compares the samples that a device trains on now with the first ones, whenever they have changed."""

    def __init__(
        self,
        bench: Workbench,
        folder: Path | None,
        notify: Callable[[str], None],
        notify_classes: Callable[[str], None],
    ) -> None:
        """folder: keeps the sketch of the first samples across restarts, or None.  notify_classes: as of Deployment."""
        self._bench, self._path = bench, None if folder is None else folder / _FILE
        self._notify, self._notify_classes = notify, notify_classes
        self._first: Sketch | None = self._kept()
        self._seen: LocalData | None = None
        self._told: set[str] = set()

    def figures(self) -> Mapping[str, float]:
        """Return the figures to upload: empty if the samples are those of the last call, or the owner allows none."""
        bench = self._bench
        if not bench.capacity or bench.data is self._seen or len(bench.samples) < LEAST:
            return {}
        self._seen, now = bench.data, sketch_of(bench.samples, bench.class_counts)
        if self._first is None:
            self._keep(now)
            return {}
        labels, features = label_shift(self._first, now), feature_shift(self._first, now)
        if labels >= LABELS:
            self._tell("labels", self._notify_classes, f"the classes of its samples have shifted (index {labels:.2f})")
        if features >= FEATURES:
            self._tell("features", self._notify, f"its samples look different from the first ones ({features:.1f} sd)")
        if bench.budget is not None:
            return {}
        return {"drift.features": features, **({"drift.labels": labels} if bench.disclosed_counts else {})}

    def _tell(self, what: str, notify: Callable[[str], None], line: str) -> None:
        if what not in self._told:
            self._told.add(what)
            notify(f"drift: {line}; compare now with before in its report, and label new samples")

    def _keep(self, first: Sketch) -> None:
        self._first = first
        try:
            if self._path is not None:
                replace_durably(self._path, json_with_digest(asdict(first)))
        except OSError as error:
            self._notify(f"{self._path}: cannot be written ({error.strerror}): drift is seen from the next start on")

    def _kept(self) -> Sketch | None:
        try:
            if self._path is None or not self._path.exists():
                return None
            found = checked_json(self._path, self._path.read_bytes(), is_old=lambda _plain: False)
            if len(found["counts"]) != self._bench.model.spec.classes:
                return None
            means, variances = ([float(each) for each in found[name]] for name in ("means", "variances"))
            return Sketch(tuple(map(int, found["counts"])), int(found["read"]), tuple(means), tuple(variances))
        except (OSError, Damaged, ValueError, KeyError, TypeError):
            return None  # it begins with the samples of now
