"""The checks that every frame passes before its message is used, the cheapest first.

Each check sees only what the ones before it let through:

    1  topic      the topic is one of those that the protocol lists, of this federation
    2  rate       its sender has not sent more than its share (shares.py)
    3  chunks     a long frame is reassembled if there is room for its sender
    4  stranger   its sender takes part or is on the roster, or the frame is one that newcomers may send
    5  signature  where the lab was set up: its sender's key signed it
    6  encryption where the lab encrypts: it was encrypted for this coordinator by the topic's device
    7  decode     size, header, checksum and body are legal; the message is from the topic's device

The transport does the first three in its own thread, through `FrameScreen`: so a flood never reaches the queue in
which frames wait for the coordinator, and a chunk takes no memory before its sender is known.  `Intake` does the
others, and the first one again, for transports without a screen.  `UploadChecks` refuses uploads that do not fit their
exchange.

A frame that fails is counted under the name of the check, for the sender that its topic names.  Without access rules
on the broker, anybody may publish under that name.  Where signatures are required, a frame without a
valid one is attributed to no sender.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.record import remarks
from coordinator.serving.devices import admission
from coordinator.serving.intake.shares import HELLO_COSTS, DeviceShares
from coordinator.serving.intake.signatures import LabSecurity
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol import topics
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, Envelope, Limits, Verify
from edge_sdk.protocol.messages import FederationSpec, Hello, PublicBlock, Upload
from edge_sdk.protocol.operator_messages import Control, Inquiry
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.protocol.topics import CONTROL, STATUS, Origin
from edge_sdk.protocol.wires import (
    check_roles,
    expectation,
    expected_batch,
    expected_upload,
    expected_weights,
    frame_limits,
)
from edge_sdk.transport.base import Incoming, Place, Rejected


def limits(spec: FederationSpec, method: Method[Any]) -> Limits:
    """The size limits of legal frames in either direction."""
    return frame_limits(method.every_exchange, expectation(spec))


def opened(frame: bytes, sender: str, federation: str, within: Limits, verify: Verify | None = None) -> Envelope:
    """Decode a frame that came on a device's topic, and check that it is from that device and for this federation.

    verify: checks its signature before decoding, or None if signatures are not required.
    """
    envelope = codec.decode(frame, within, verify)
    message = envelope.message
    if message.federation != federation:
        raise RemoteProtocolError("topic", f"for federation {message.federation}")
    if isinstance(message, (Control, Inquiry, PublicBlock)):
        raise RemoteProtocolError("topic", f"a {type(message).__name__} on the topic of a device")
    if getattr(message, "device", None) != sender:
        raise RemoteProtocolError("topic", f"came on the topic of {sender}, but names another sender")
    return envelope


def opened_command(frame: bytes, federation: str, within: Limits, verify: Verify | None = None) -> Envelope:
    """Decode a frame that came on the topic of commands, and check that it is an operator's for this federation.

    verify: checks its signature, or None if only the broker's access rules decide who may publish on that topic.
    """
    envelope = codec.decode(frame, within, verify)
    message = envelope.message
    if message.federation != federation:
        raise RemoteProtocolError("topic", f"for federation {message.federation}")
    if not isinstance(message, (Control, Inquiry, PublicBlock)):
        raise RemoteProtocolError("topic", f"a {type(message).__name__} is not an operator's command")
    return envelope


class UploadChecks:
    """Checks uploads against what each exchange asks for, by the method and the federation's sizes."""

    def __init__(self, spec: FederationSpec, method: Method[Any]) -> None:
        self._spec, self._method = spec, method
        self._exchanges = method.exchanges
        self._sizes = expectation(spec)
        self._batch: tuple[ExchangeId, int, bytes] | None = None
        """The exchange of the last upload to a public batch, the size of the batch, and its digest."""

    def check(self, upload: Upload, hello: Hello, place: ExchangeId, *, closing: bool, alone: bool = False) -> None:
        """Check an upload to the exchange that is open at `place`.

        upload: with its transforms undone.  hello: of its device.  closing: whether this is the closing exchange.
        alone: whether the device is in the control group.
        """
        if upload.alone and not alone:
            raise RemoteProtocolError("knowledge", "it trained alone, and is not in the control group")
        if upload.closing != closing:
            raise RemoteProtocolError("knowledge", "closing flag and place do not agree")
        if closing:
            check_roles(upload.knowledge, {}, self._sizes)
            return
        if upload.alone:
            check_roles(upload.knowledge, {}, self._sizes)
            return
        hello = admission.at_upload(hello, upload)
        slots = self._exchanges[place.exchange].up
        expect = expected_upload(self._sizes, samples=hello.samples)
        if self._method.shares_weights:
            layout = hello.layout or b""
            expect = expected_weights(expect, count=hello.weight_count, feature_dim=hello.feature_dim, layout=layout)
        sizes = {slot.rows for slot in slots.values() if slot.rows}
        if sizes and self._spec.public is not None:
            (size,) = sizes
            expect = expected_batch(expect, rows=size, batch=self._batch_at(place, size))
        check_roles(upload.knowledge, slots, expect)
        remarks.check_classes(self._method, hello, upload.knowledge, slots)

    def _batch_at(self, place: ExchangeId, size: int) -> bytes:
        """Return the digest of an exchange's public batch; cached, since all its uploads share it."""
        known = self._batch
        if known is None or known[:2] != (place, size):
            indices = batch_indices(self._spec, place.round, place.exchange, size)
            self._batch = known = place, size, batch_digest(self._spec, indices)
        return known[2]


NOBODY = "unknown"
"""The sender of frames on topics that name no device."""
FROM_STRANGERS = frozenset({"hello", "bye", STATUS, CONTROL})
"""The kinds of topics on which the coordinator listens to senders that do not take part."""


def booked_to(origin: Origin) -> str:
    """Return the sender to which a frame on a topic of this origin is attributed."""
    return origin.device or NOBODY


@dataclass(frozen=True, slots=True)
class Opened:
    """A frame that passed the checks."""

    envelope: Envelope
    frame: bytes
    """As the ledger keeps it: not encrypted."""
    plain: bool = False
    """Whether it came unencrypted in a lab that encrypts."""


class Intake:
    """Opens the frames of one federation."""

    def __init__(
        self, federation: str, within: Limits, known: Callable[[str], bool], security: LabSecurity | None = None
    ) -> None:
        """within: limits of legal frames.  known: whether a device takes part or is on the roster.

        security: the keys of permitted senders, or None if signatures are not required.
        """
        self._federation, self._within, self._known, self._security = federation, within, known, security
        self.sender = NOBODY
        """The sender of the last frame: its topic's device, or where signatures are required, the verified one."""

    def opened(self, incoming: Incoming, origin: Origin) -> Opened:
        """Return the message of a frame.  Raises RemoteProtocolError named after the check that it fails.

        origin: what its topic names.

        In a lab that encrypts, a plain Hello is still opened, so that the coordinator can answer its sender.
        """
        self.sender = NOBODY if self._security else booked_to(origin)
        with legible():
            self._check_origin(origin)
            verify = self._verify(origin)
            frame = incoming.frame
            if origin.kind == CONTROL:
                return Opened(opened_command(frame, self._federation, self._within, verify), frame)
            plain = False
            if origin.kind != STATUS and self._security is not None and self._security.encrypts and verify is not None:
                plain = origin.kind == "hello" and not codec.is_sealed(frame)
                if not plain:
                    frame, verify = self._unsealed(frame, origin.device, verify), None
            return Opened(opened(frame, origin.device, self._federation, self._within, verify), bytes(frame), plain)

    def _unsealed(self, frame: bytes, device: str, verify: Verify) -> bytes:
        sealing = self._security.sealing(self._federation, device) if self._security else None
        if sealing is None:
            raise RemoteProtocolError("encryption", f"{device} has enrolled no key for encryption: enrol it again")
        return sealing.opened(frame, self._within, verify)

    def _verify(self, origin: Origin) -> Verify | None:
        """Return the check of the signature, which records the verified sender, or None if none is required."""
        security = self._security
        if security is None:
            return None
        if origin.kind == CONTROL:
            return security.of_operator
        genuine = security.of_device(origin.device)

        def verify(key: bytes, signed: bytes, signature: bytes) -> bool:
            proven = genuine(key, signed, signature)
            if proven:
                self.sender = origin.device
            return proven

        return verify

    def _check_origin(self, origin: Origin) -> None:
        """Raise RemoteProtocolError for a foreign topic, and for one that only devices that joined may use."""
        if not origin.kind or origin.federation != self._federation:
            raise RemoteProtocolError("topic", "a topic that this federation does not have")
        if origin.kind not in FROM_STRANGERS and not self._known(origin.device):
            raise RemoteProtocolError("stranger", f"{origin.device} has not joined")


REPORT_S = 1.0
"""Minimum seconds between two reports of refused messages."""
MOST_REPORTED = 256
"""Maximum number of (sender, word) pairs in one report; further ones are counted without a name."""
LONG_KINDS = frozenset({"hello", "upd", "log"})
"""The kinds of topics whose legal frames may be long enough to travel in chunks."""
STRANGER, MEMBER, DUE = 0, 1, 2
"""The ranks of long frames: from a non-participant; from a device; an upload that the round waits for."""
NO_PLACE = Place(0, STRANGER)


class FrameScreen:
    """Refuses messages by their topics and by their senders' shares, and limits the memory of long frames."""

    def __init__(
        self,
        *,
        federation: str,
        frame_bytes: int,
        shares: DeviceShares,
        known: Callable[[str], bool],
        due: Callable[[str], bool],
    ) -> None:
        """known: whether a device takes part or is on the roster.  due: whether the round waits for its upload."""
        self._federation, self._frame_bytes, self._shares = federation, frame_bytes, shares
        self._known, self._due = known, due
        self._lock = threading.Lock()
        self._refused: Counter[tuple[str, str]] = Counter()
        """Refused messages since the last report, by (sender, word); the empty sender stands for unnamed ones."""
        self._topics: dict[str, str] = {}
        """A topic of each of these senders."""
        self._report_s = 0.0

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message may pass; if not, it is counted, unless it is a copy that honest devices may cause.

        An empty message is not counted either: `lab revoke` sends one to delete a retained message.
        """
        origin = topics.origin(topic)
        word = self._fault(origin, payload, now_s, chunk=chunk)
        if not word:
            return True
        if word in (_COPY, _CLEARED):
            return False
        with self._lock:
            sender = origin.device
            if (sender, word) not in self._refused and len(self._refused) >= MOST_REPORTED:
                sender = ""
            self._topics.setdefault(sender, topic[: topics.LONGEST] if sender else "")
            self._refused[sender, word] += 1
        return False

    def place(self, topic: str) -> Place:
        """Return the room for a long frame on this topic; each device has one topic of each kind."""
        origin = topics.origin(topic)
        if origin.federation != self._federation or origin.kind not in LONG_KINDS:
            return NO_PLACE
        if not self._known(origin.device):
            return Place(CONTROL_LIMITS.frame_bytes, STRANGER) if origin.kind == "hello" else NO_PLACE
        if origin.kind != "upd":
            return Place(CONTROL_LIMITS.frame_bytes, MEMBER)
        return Place(self._frame_bytes, DUE if self._due(origin.device) else MEMBER)

    def refused(self, now_s: float) -> tuple[Rejected, ...]:
        """Return the refusals since the last report, or nothing if that was a moment ago."""
        if not self._refused or now_s < self._report_s:
            return ()
        self._report_s = now_s + REPORT_S
        with self._lock:
            counted, self._refused = self._refused, Counter()
            named, self._topics = self._topics, {}
        return tuple(Rejected(named[sender], word, _REASONS[word], n) for (sender, word), n in counted.items())

    def _fault(self, origin: Origin, payload: bytes, now_s: float, *, chunk: bool) -> str:
        """Return the word for the fault of a message, or empty if it has none."""
        if not origin.kind or origin.federation != self._federation:
            return "topic"
        device, cost = origin.device, HELLO_COSTS if origin.kind == "hello" else 1
        if origin.kind != CONTROL and not self._known(device):
            if chunk and origin.kind != "hello":
                return "stranger"
            return "" if self._shares.take_stranger(device, now_s, cost=1 if chunk else cost) else "rate"
        if chunk and origin.kind != "want":
            return "" if self._shares.take_chunk(device, now_s) else "rate"
        if origin.kind == "upd" and self._shares.copies(device, payload, now_s):
            return _COPY if self._shares.copies_are_honest(device) else "rate"
        if not self._shares.take(device, now_s, cost=cost):
            return "rate"
        return "" if payload else _CLEARED


_COPY = "copy"
"""An upload that has just come; it is dropped, and not reported."""
_CLEARED = "cleared"
"""An empty message, which deletes a retained one on the broker."""
_REASONS = {
    "topic": "a topic that this federation does not have",
    "rate": "it sends more than its share, or repeats one upload",
    "stranger": "a long frame of a sender that has not joined",
}
