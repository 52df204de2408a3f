"""Whether a device's samples have changed since it joined: label shift and feature shift, by simple tests.

What is kept of the first samples is bounded: their number, those of each class, and mean and variance of CHUNKS parts
of the inputs.  What leaves the device is at most two numbers, and only those that its owner allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from edge_sdk.at_rest.digests import checked_json, json_with_digest
from edge_sdk.at_rest.files import replace_durably
from edge_sdk.data import LocalData
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Damaged
from edge_sdk.reductions.shift import FEATURES, LABELS, LEAST, Sketch, feature_shift, label_shift, sketch_of

_FILE = "first-samples.json"


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
            self._notify(f"{self._path}: cannot be written ({error.strerror}): a restart begins the comparison again")

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
