"""Adds accepted uploads to the method's aggregate and to the record, both live and after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coordinator.record.round_result import COORDINATOR
from coordinator.record.run_record import RunRecord
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake.canary import Canary
from coordinator.serving.intake.upload_screen import UploadScreen
from coordinator.serving.reduction import EarlierVersions, Reduction
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Upload
from edge_sdk.reductions.influence import PAPER, RobustTable


class Aggregation:
    """The sum of the accepted uploads of a run: the state of the method and the record."""

    def __init__(
        self,
        registry: DeviceRegistry,
        reduction: Reduction,
        record: RunRecord,
        exchanges: int,
        robust: RobustTable = PAPER,
        *,
        canary: Canary | None = None,
        versions: EarlierVersions | None = None,
    ) -> None:
        """exchanges: the number of exchanges in a round.  robust: limits on the influence of one device.

        canary: tries the result of a round before devices get it.  versions: the earlier versions from which uploads
        may be made, where the coordinator aggregates from buffers.
        """
        self._canary = canary
        if canary is not None:
            canary.restore(record.canary)
        self.excused = False
        """Whether the last closed exchange has no result although the run continues: the canary held it back, or only
        the control group answered."""
        self.versions = versions
        self._registry, self._reduction, self.record = registry, reduction, record
        self.screen = UploadScreen(robust, registry, record, reduction.method.size_of)
        reduction.as_counted = self.screen.in_slot
        self._sent: tuple[ExchangeId, Mapping[str, Payload]] | None = None
        """The open exchange, and the payloads by role that all devices got in it."""
        self._alone: set[str] = set()
        """The devices of the control group that answered in the open exchange."""
        self._last = exchanges - 1
        self.contributors = 0
        """The number of devices that contributed to the last closed exchange."""

    def add(self, upload: Upload) -> None:
        """Add one upload, with its transforms undone; the screen decides how much of it counts.

        Raises StoreError if the disk refuses; then nothing has changed.
        """
        device, record = upload.device, self.record
        self._registry.follow(upload)
        alone = upload.alone or record.control.was_alone(device, upload.round)
        if not upload.closing:
            if alone:
                self._alone.add(device)
                record.contributed[device] += 1
            elif self.screen.counts(upload, self._common(ExchangeId(upload.round, upload.exchange))):
                self._fold(upload)
                record.contributed[device] += 1
            record.last_round[device] = upload.round + 1
            if upload.exchange == self._last:
                record.rounds_done[device] += 1
                if alone:
                    record.add("alone", device, 1)
        record.reported(device, upload)
        if alone:  # only its figures count
            if upload.alone:
                record.control.measured(device, upload.metrics or upload.personal_metrics, alone=True)
            return
        record.instrument(upload.round + 1, device, upload.instruments)
        arrived = self._reduction.method.arrives(closing=upload.closing)
        most = record.done if upload.closing else upload.round + 1  # a run may end before its last round
        record.measured(device, min(upload.metrics_round, most), upload.metrics, arrived)
        record.measured(device, min(upload.personal_round, most), upload.personal_metrics)
        own = upload.metrics if arrived == "personal" else upload.personal_metrics
        record.control.measured(device, own, alone=False)
        record.served(device, upload.joining_metrics, upload.not_served)
        record.held(upload.knowledge)
        record.travelled("up", upload.knowledge)

    def _fold(self, upload: Upload) -> None:
        counted = self.screen.counted(upload.device, upload.knowledge)
        if self.versions is not None:
            counted = self.versions.aged(counted, upload.round, self.record.done)
        if counted is not upload.knowledge:
            upload = replace(upload, knowledge=FrozenDict(counted))
        samples = self.screen.samples(upload.device, upload.samples)
        self._reduction.add(self._registry.numbers[upload.device], upload, samples)

    def _common(self, place: ExchangeId) -> Mapping[str, Payload]:
        if self.versions is not None:
            return self.versions.began(place.round, self.record.done)
        if self._sent is None or self._sent[0] != place:
            self._sent = place, self._reduction.common(place)
        return self._sent[1]

    def add_stored(self, frame: bytes) -> None:
        """Add an upload that was accepted before a restart, from its frame in the ledger."""
        upload = self._reduction.stored(frame)
        if upload is not None:
            self.add(upload)
            self.record.updates["accepted"] += 1

    def close(self, place: ExchangeId, contributors: tuple[str, ...]) -> list[str]:
        """Let the method reduce an exchange without the uploads that the screen leaves out; returns lines to log.

        Raises EdgeError if the method cannot; then only uploads that were left out have changed the state.  Raises
        EmptyRound if the canary holds the result back; then the state is the earlier one.
        """
        self.excused = self._alone.issuperset(contributors)
        screen = self.screen
        far_off = screen.outliers()
        fresh = screen.to_leave_out(far_off)
        left = self._alone.union(fresh)
        counted = tuple(device for device in contributors if not (screen.left_out(device) or device in left))
        if fresh:
            self._add_again(place, counted)
            screen.leave_out(fresh)
            self.record.contributed.subtract(fresh)
        out = tuple(device for device in contributors if screen.left_out(device))
        alone = tuple(device for device in contributors if device in self._alone)
        before, news = self._reduction.state, list[str]()
        try:
            found = self._reduction.finish(place, counted, self._registry.numbers, screen.registered, (*out, *alone))
        except EmptyRound as error:
            raise (EmptyRound(f"round {place.round}: {screen.why_none()}") if out and not counted else error) from None
        finally:
            self._alone.clear()
        if self._canary is not None and place.exchange == self._last:
            fault = self._canary.fault(self._reduction.method, before, self._reduction.state, place)
            if fault:
                screen.close(place.round, far_off)
                self._reduction.state, self.excused, self._sent = before, True, None
                raise EmptyRound(fault)
            self.record.canary = self._canary.to_json()
            news = self._canary.news()
        self.record.instrument(place.round + 1, COORDINATOR, found)
        self.contributors = len(counted)
        self._sent = None
        return screen.close(place.round, far_off) + news

    def _add_again(self, place: ExchangeId, devices: tuple[str, ...]) -> None:
        """Add up only the uploads of these devices, from the ledger."""
        self._reduction.drop_all()
        for device in devices:
            upload = self._reduction.kept(place, device)
            if upload is not None:
                self._fold(upload)
