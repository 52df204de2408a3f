"""Adds accepted uploads to the method's aggregate and to the record, both live and after a restart."""

from __future__ import annotations

from coordinator.record.instruments import COORDINATOR
from coordinator.record.run_record import RunRecord
from coordinator.serving.device_registry import DeviceRegistry
from coordinator.serving.reduction import Reduction
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import Upload


class Aggregation:
    """The sum of the accepted uploads of a run: the state of the method and the record."""

    def __init__(self, registry: DeviceRegistry, reduction: Reduction, record: RunRecord, exchanges: int) -> None:
        """exchanges: how many exchanges a round has."""
        self._registry, self._reduction, self.record = registry, reduction, record
        self._last = exchanges - 1
        self.contributors = 0
        """How many devices contributed to the exchange that was closed last."""

    def add(self, upload: Upload) -> None:
        """Add one upload, with its transforms undone.  No device weighs more than the samples that it declared.

        Raises StoreError if the disk refuses; then nothing has changed.
        """
        device, record = upload.device, self.record
        self._registry.follow(upload)
        if not upload.closing:
            declared = self._registry.samples[device] or upload.samples
            self._reduction.add(self._registry.numbers[device], upload, min(upload.samples, declared))
            record.contributed[device] += 1
            record.last_round[device] = upload.round + 1
            if upload.exchange == self._last:
                record.rounds_done[device] += 1
        record.spent(device, upload)
        record.instrument(upload.round + 1, device, upload.instruments)
        arrived = self._reduction.method.arrives(closing=upload.closing)
        record.measured(device, upload.metrics_round, upload.metrics, arrived)
        record.measured(device, upload.personal_round, upload.personal_metrics)
        record.served(device, upload.joining_metrics, upload.not_served)
        record.held(upload.knowledge)
        record.travelled("up", upload.knowledge)

    def add_stored(self, frame: bytes) -> None:
        """Add an upload that was accepted before a restart; frame: its frame in the ledger."""
        upload = self._reduction.stored(frame)
        if upload is not None:
            self.add(upload)
            self.record.updates["accepted"] += 1

    def close(self, place: ExchangeId, contributors: tuple[str, ...]) -> None:
        """Let the method reduce an exchange.  Raises EdgeError if it cannot; then nothing has changed."""
        found = self._reduction.finish(place, contributors, self._registry.numbers, self._registry.registered)
        self.record.instrument(place.round + 1, COORDINATOR, found)
        self.contributors = len(contributors)
