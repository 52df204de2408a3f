"""Sends the coordinator's messages: encodes them as frames, and counts each frame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from coordinator.rounds import RoundPhase
from coordinator.serving.devices.admission import ENCRYPTION, RefusalReason
from coordinator.serving.intake.shares import BLOCK_EARNS, EXCHANGE_EARNS
from coordinator.serving.run_context import RunContext
from edge_sdk.identity.sealing import Sealing
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.body import PackedField
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, Message, PublicBlock, Receipt, Refusal, Welcome
from edge_sdk.protocol.model_offers import ModelOffer
from edge_sdk.protocol.operator_messages import ControlAnswer, LogRequest
from edge_sdk.transport.base import Transport, Will
from edge_sdk.transport.chunks import CHUNK_BYTES

log = logging.getLogger(__name__)

DeviceMessage: TypeAlias = "Welcome | Refusal | Assign | Receipt | PublicBlock | ModelOffer | LogRequest"

_KINDS = {
    Welcome: "join",
    Refusal: "join",
    Assign: "task",
    Receipt: "rcpt",
    PublicBlock: "pub",
    ModelOffer: "offer",
    LogRequest: "log",
}
_COUNTED_AS = {
    Welcome: "joining",
    Refusal: "joining",
    Assign: "knowledge",
    Receipt: "receipts",
    PublicBlock: "public set",
    ModelOffer: "other",
    LogRequest: "other",
}
"""The kinds under which frames are counted (`run_record.KINDS`)."""
OPERATORS = ""
"""The name under which operators share one bucket of frames."""


class Sender:
    """Sends messages, each stamped with the coordinator's epoch and a sequence number."""

    def __init__(self, context: RunContext, transport: Transport, asks: Callable[[str, int], None]) -> None:
        """asks: is called at each new request to a device, with the maximum number of frames of the answer."""
        self._context, self._transport, self._asks = context, transport, asks
        self._spec, self._run, self._ledger, security = context.spec, context.run, context.ledger, context.security
        self._signer = security.started(self._ledger.epoch) if security else None
        self._sealing = partial(security.sealing, self._spec.federation) if security and security.encrypts else None
        self._succession = security.identity.succession if security else b""
        self._asked: dict[str, ExchangeId] = {}
        """The last exchange to which each device was invited."""
        self._sequence = 0
        self._long: dict[str, tuple[ExchangeId, Sealing | None, Frame]] = {}
        """Assigns that travel in chunks, by device: resending the same bytes lets a transfer continue.  Devices share
        the common part in memory."""
        self._circulars: dict[type, tuple[object, codec.Circular]] = {}
        """For each kind of message, the last one that went to many devices, with its key."""

    def connect(self) -> None:
        """Open the link; its last will announces to devices that the coordinator is lost."""
        federation = self._spec.federation
        will = Will(topics.coordinator_status(federation), self._frame(self._status("lost")))
        self._transport.connect(topics.coordinator_subscriptions(federation), will)

    def announce(self, state: str, reason: str) -> None:
        """Send the state of the run as a retained message."""
        frame = self._frame(self._status(state, reason))
        self._transport.send(topics.coordinator_status(self._spec.federation), frame, retain=True)

    def announce_run(self) -> None:
        """Announce the state of the run to devices that connect now or later."""
        over, reason = self._context.queue.over, self._context.rounds.reason
        if over and self._context.rounds.phase is RoundPhase.DRAINED:
            self.announce("lost", "an operator stopped the coordinator; the run can be resumed")
        else:
            self.announce(("failed" if reason else "finished") if over else "ready", reason if over else "")

    def ask_for_hello(self, device: str) -> None:
        """Ask a device that sends as if it took part, but is unknown here, to send Hello."""
        status = CoordinatorStatus(
            federation=self._spec.federation, state="ready", epoch=self._ledger.epoch, run=self._run, greet=True
        )
        self._transport.send(topics.down(self._spec.federation, device, "join"), self._frame(status))

    def send(self, device: str, message: DeviceMessage, counted_as: str = "") -> None:
        """Send a message to a device; counted_as: one of `run_record.KINDS`, if not the usual one."""
        if isinstance(message, PublicBlock):
            self._asks(device, BLOCK_EARNS)
        kind = type(message)
        self._hand(device, kind, self._frame_to(device, kind, lambda: message), counted_as=counted_as)

    def answer(self, answer: ControlAnswer) -> None:
        """Answer an operator.  The frame counts in no device's bytes."""
        self._asks(OPERATORS, BLOCK_EARNS * len(answer.wanted))
        topic = topics.control_answer(self._spec.federation, answer.operator)
        self._transport.send(topic, self._frame(answer))

    def welcome(self, device: str, number: int, run: bytes, public_bytes: int) -> None:
        """Welcome a device that may take part; public_bytes: size of the public set to fetch here, or 0."""
        welcome = Welcome(
            federation=self._spec.federation,
            device=device,
            number=number,
            epoch=self._ledger.epoch,
            run=run,
            spec=self._spec,
            public_bytes=public_bytes,
        )
        if self._signer is not None:
            self.send(device, welcome)
            return
        circular = self._circular(Welcome, lambda: welcome, (self._ledger.epoch, run, public_bytes), own=("number",))
        self._sequence += 1
        stamp = Stamp(self._ledger.epoch, self._sequence)
        self._hand(device, Welcome, circular.told(welcome, stamp, ("number",)))

    def refuse(self, device: str, refusal: RefusalReason, instance: bytes | None = None) -> None:
        """Refuse a device that may not take part; instance: the one that is meant, if several use this id."""
        self.send(
            device,
            Refusal(
                federation=self._spec.federation,
                device=device,
                reason=refusal.reason,
                message=one_line(refusal.message, 1024),
                remedy=one_line(refusal.remedy, 1024),
                instance=instance,
            ),
        )

    def receipt(self, device: str, place: ExchangeId, verdict: str, reason: str) -> None:
        """Send the verdict on an upload."""

        def receipt() -> Receipt:
            return Receipt(
                federation=self._spec.federation,
                device=device,
                round=place.round,
                exchange=place.exchange,
                closing=place.round == self._spec.rounds,
                verdict=verdict,
                reason=reason,
                run=self._run,
            )

        frame = self._frame_to(device, Receipt, receipt, (place, verdict, reason))
        self._hand(device, Receipt, frame, answered=True)  # unanswered, the device would send the upload again

    def repeat(self, device: str, at: ExchangeId) -> bool:
        """Send the Assign of this exchange again if it travels in chunks; returns whether it was sent."""
        then, sealing, frame = self._long.get(device, (None, None, b""))
        if then != at or sealing is not self._sealing_to(device):
            return False
        self._hand(device, Assign, frame)
        return True

    def assign(  # noqa: PLR0917  # the fields of one message
        self,
        device: str,
        at: ExchangeId,
        common: PackedField,
        personal: Mapping[str, Payload],
        left_s: float,
        after: int | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Send an Assign; common: that field, packed once for all devices; left_s: time to the deadline.

        after: the number of rounds done, in the closing exchange of a run that ends early.  alone: whether the device
        is in the control group.
        """

        def assign() -> Assign:
            return Assign(
                federation=self._spec.federation,
                device=device,
                round=at.round,
                exchange=at.exchange,
                closing=at.round == self._spec.rounds,
                deadline_s=left_s,
                personal=personal,
                run=self._run,
                after=after,
                alone=alone,
            )

        first = self._asked.get(device) != at
        if first:
            self._asked[device] = at
            self._asks(device, EXCHANGE_EARNS)
        same = None if personal else (at, left_s, after, alone, common)
        frame = self._frame_to(device, Assign, assign, same, {"common": common})
        self._long.pop(device, None)
        if frame is not None and len(frame) > CHUNK_BYTES:
            self._long[device] = at, self._sealing_to(device), frame
        self._hand(device, Assign, frame, answered=first)

    def packed_common(self, common: Mapping[str, Payload], at: ExchangeId, anybody: str) -> PackedField:
        """Pack the payloads that all Assigns of an exchange share; anybody: the id of any device."""
        federation = self._spec.federation
        assign = Assign(federation=federation, device=anybody, round=at.round, exchange=at.exchange, common=common)
        return codec.pack_field(assign, "common")

    def _hand(
        self, device: str, kind: type, frame: Frame | None, *, answered: bool = False, counted_as: str = ""
    ) -> None:
        if frame is None:
            log.warning("%s gets no %s: the lab encrypts, and the device has no key for it", device, kind.__name__)
            return
        if self._context.registry.known(device):  # others are not tracked: their number is unbounded
            self._context.record.sent(device, len(frame), counted_as or _COUNTED_AS[kind])
        self._transport.send(topics.down(self._spec.federation, device, _KINDS[kind]), frame, answered=answered)

    def _sealing_to(self, device: str) -> Sealing | None:
        return None if self._sealing is None else self._sealing(device)

    def _frame_to(
        self,
        device: str,
        kind: type,
        made: Callable[[], DeviceMessage],
        same: object = None,
        packed: Mapping[str, PackedField] = MappingProxyType({}),
    ) -> Frame | None:
        """Return the frame of a message to one device, encrypted if the lab encrypts, or None without a key for that.

        same: equal for messages that differ only in the device's id, which are packed once, or None for a message of
        its own.  A Refusal for lack of a key is sent unencrypted.
        """
        if self._signer is None and same:
            circular = self._circular(kind, made, same, packed)
            self._sequence += 1
            return circular.frame(device, Stamp(self._ledger.epoch, self._sequence))
        message = made()
        if self._signer is None or self._sealing is None:
            return self._frame(message, packed)
        sealing = self._sealing_to(device)
        if isinstance(message, Refusal) and (sealing is None or message.reason == ENCRYPTION):
            return self._frame(message)
        if sealing is None:
            return None
        return sealing.sealed(codec.encode(message, packed=packed), self._signer)

    def _circular(
        self,
        kind: type,
        made: Callable[[], DeviceMessage],
        same: object,
        packed: Mapping[str, PackedField] = MappingProxyType({}),
        own: tuple[str, ...] = (),
    ) -> codec.Circular:
        before, circular = self._circulars.get(kind, (None, None))
        if circular is None or before != same:
            circular = codec.Circular(made(), packed, own)
            self._circulars[kind] = same, circular
        return circular

    def _frame(self, message: Message, packed: Mapping[str, PackedField] = MappingProxyType({})) -> bytes:
        if self._signer is not None:
            return codec.encode(message, self._signer.stamp(), self._signer.sign, packed)
        self._sequence += 1
        return codec.encode(message, Stamp(self._ledger.epoch, self._sequence), packed=packed)

    def _status(self, state: str, reason: str = "") -> CoordinatorStatus:
        return CoordinatorStatus(
            federation=self._spec.federation,
            state=state,
            epoch=self._ledger.epoch,
            reason=one_line(reason),
            run=self._run,
            succession=self._succession,
        )
