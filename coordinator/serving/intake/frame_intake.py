"""The checks that every frame passes before its message is used, the cheapest first.

Each check sees only what the ones before it let through:

    1  topic      the topic is one of those that the protocol lists, of this federation
    2  rate       its sender has not sent more than its share (shares.py)
    3  chunks     a long frame is reassembled if there is room for its sender
    4  stranger   its sender takes part or is on the roster, or the frame is one that newcomers may send
    5  signature  where the lab was set up: its sender's key signed it
    6  encryption where the lab encrypts: it was encrypted for this coordinator by the topic's device
    7  decode     size, header, checksum and body are legal; the message is from the topic's device

The transport does the first three in its own thread, through frame_screen.py.  `Intake` does the others, and the
first one again, for transports without a screen.

A frame that fails is counted under the name of the check, for the sender that its topic names.  Without access rules
on the broker, anybody may publish under that name.  Where signatures are required, a frame without a
valid one is attributed to no sender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.serving.intake import checks
from coordinator.serving.intake.signatures import LabSecurity
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Envelope, Limits, Verify
from edge_sdk.protocol.topics import CONTROL, STATUS, Origin
from edge_sdk.transport.base import Incoming

NOBODY = "unknown"
"""The sender of frames on topics that name no device."""
FROM_STRANGERS = frozenset({"hello", "bye", STATUS, CONTROL})
"""The kinds of topics on which the coordinator listens to senders that do not take part."""


def booked_to(topic: str) -> str:
    """Return the sender to which a frame on this topic is attributed."""
    return topics.sender(topic) or NOBODY


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

    def opened(self, incoming: Incoming) -> Opened:
        """Return the message of a frame.  Raises RemoteProtocolError named after the check that it fails.

        In a lab that encrypts, a plain Hello is still opened, so that the coordinator can answer its sender.
        """
        self.sender = NOBODY if self._security else booked_to(incoming.topic)
        with legible():
            origin = self._origin(incoming.topic)
            verify = self._verify(origin)
            frame = incoming.frame
            if origin.kind == CONTROL:
                return Opened(checks.opened_command(frame, self._federation, self._within, verify), frame)
            plain = False
            if origin.kind != STATUS and self._security is not None and self._security.encrypts and verify is not None:
                plain = origin.kind == "hello" and not codec.is_sealed(frame)
                if not plain:
                    frame, verify = self._unsealed(frame, origin.device, verify), None
            return Opened(
                checks.opened(frame, origin.device, self._federation, self._within, verify), bytes(frame), plain
            )

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

    def _origin(self, topic: str) -> Origin:
        """Return what a topic names.  Raises RemoteProtocolError for one that only devices that joined may use."""
        origin = topics.origin(topic)
        if origin is None or origin.federation != self._federation:
            raise RemoteProtocolError("topic", "a topic that this federation does not have")
        if origin.kind not in FROM_STRANGERS and not self._known(origin.device):
            raise RemoteProtocolError("stranger", f"{origin.device} has not joined")
        return origin
