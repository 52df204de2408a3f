"""Supplies a device's workbench with its own data: fixed data, or snapshots of a store that fills."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from edge_sdk.class_names import name_of
from edge_sdk.data import LocalData
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.models.base import Model
from edge_sdk.public_set.samples import PublicSet

if TYPE_CHECKING:
    from edge_sdk.samples.store import SampleStore, Snapshot

log = logging.getLogger(__name__)

OwnData: TypeAlias = "LocalData | SampleStore"
"""The data argument of a device."""


class DataSupply:
    """The device's own data.  Each round begins with a named snapshot, so that a restart finds the same data."""

    def __init__(
        self,
        model: Model,
        data: OwnData,
        public: PublicSet | None,
        *,
        discloses_classes: bool,
        proxy: Model | None,
        budget: BudgetLedger | None = None,
    ) -> None:
        self._store = None if isinstance(data, LocalData) else data
        self._now: Snapshot | None = None
        self._trained: bytes | None = None
        """The snapshot that was last trained on, or None if none is known; empty for data that never change."""
        self._reported: bytes | None = None
        """The last snapshot whose lost classes were reported; rounds without a change have the same one."""
        self._notify: Callable[[str], None] = log.info
        self._notify_classes: Callable[[str], None] = log.info
        self.early_news = list[str]()
        """Lines for the owner that wait until callbacks can have been registered."""
        if isinstance(data, LocalData):
            given, capacity = data, 0
        else:
            if data.classes != model.spec.classes:
                raise UsageError(f"data: the store has {data.classes} classes, the model {model.spec.classes}")
            self._now = data.take_snapshot()
            given, capacity = self._now.data, data.capacity
        discloses = discloses_classes and budget is None
        self.bench = Workbench(model, given, public, discloses_classes=discloses, capacity=capacity, budget=budget)
        if proxy is not None:
            self.bench.add_proxy(proxy)
        self._waited = self.waits
        """Whether there was nothing to train on at the last call of `arrived`."""

    def tell(self, notify: Callable[[str], None], notify_classes: Callable[[str], None]) -> None:
        """Set the callbacks for news; notify_classes: receives lines that reveal which classes have samples."""
        self._notify, self._notify_classes = notify, notify_classes
        self.bench.tell_of_classes = notify_classes

    @property
    def changes(self) -> bool:
        """Whether the data can change from round to round."""
        return self._store is not None

    @property
    def waits(self) -> bool:
        """Whether there is nothing to train on yet."""
        return not len(self.bench.samples)

    @property
    def new_samples(self) -> int:
        """The number of samples to train on that came since the last training."""
        if self._store is not None:
            return self._store.new_since(self._trained or b"")
        return len(self.bench.samples) if self._trained is None else 0

    def begin_round(self) -> bytes:
        """Take a snapshot as the data of a round; returns its id, or empty for data that never change.

        If the disk fails, the round uses the data of the round before.
        """
        if self._store is None or self._now is None:
            return b""
        try:
            taken = self._store.take_snapshot(self._now)
        except StoreError as error:
            self._notify(f"{error}; this round trains without the samples that came since the last one")
            return self._now.id
        if taken.lost and taken.id != self._reported:
            self._reported = taken.id
            classes = ", ".join(name_of(each, self._store.class_names) for each in taken.lost)
            self._notify_classes(f"no training samples are left of class {classes}: the model may forget it")
        self._use(taken)
        return taken.id

    def return_to(self, snapshot: bytes) -> None:
        """Use the data of an earlier round again, or, with a warning, the current data if those are gone."""
        if self._store is None or not snapshot or (self._now is not None and self._now.id == snapshot):
            return
        found = self._store.snapshot(snapshot)
        if found is None:
            self.begin_round()
            self._warn_of_lost_samples(self._store)
        else:
            self._use(found)

    def _warn_of_lost_samples(self, store: SampleStore) -> None:
        line = (
            f"{store.path or 'its SampleStore in memory'}: lacks samples that this device trained on last; "
            f"it continues with the {len(store)} that it has now"
        )
        if store.path is not None:
            line += "; if the file was emptied, deleted or replaced, stop the device, and restore a copy"
        log.warning("%s", line)
        self.early_news.append(line)

    def release(self, snapshot: bytes) -> None:
        """Note that this snapshot was trained on; the store may forget samples that only earlier rounds have used."""
        self._trained = snapshot
        if self._store is not None and snapshot:
            self._store.release(snapshot)

    def save(self) -> None:
        """Save pending samples; a disk fault is reported to the owner."""
        try:
            if self._store is not None:
                self._store.flush()
        except StoreError as error:
            self._notify(str(error))

    def arrived(self) -> bool:
        """Save pending samples if due; returns whether the first samples to train on have just arrived."""
        if self._store is None:
            return False
        self._store.save_if_due()
        if self.waits and self._store.trainable:
            self.begin_round()
        came = self._waited and not self.waits  # a round's snapshot may have brought them before this call
        self._waited = self.waits
        return came

    def _use(self, snapshot: Snapshot) -> None:
        if snapshot is not self._now:
            self.bench.use(snapshot.data)
            self._now = snapshot
