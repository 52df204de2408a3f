"""The checks that every frame passes before its message is used, the cheapest first.

Each check sees only what the ones before it let through:

    1  topic      the topic is one of those that the protocol lists, of this federation
    2  rate       its sender has not sent more than its share (shares.py)
    3  chunks     a long frame is put together if there is room for its sender's
    4  stranger   its sender takes part, or is on the roster, or the frame is one with which devices come and go
    5  signature  where the lab was set up: its sender's key signed it
    6  encryption where the lab encrypts: it was encrypted for this coordinator by the topic's device
    7  decode     size, header, checksum and body are legal; the message is from the topic's device

The transport makes the first three, in its own thread, by asking frame_screen.py; `Intake` makes the others, and the
first one again, for transports that do not ask.

A frame that fails is counted under the word of the check, for the sender that its topic names.  Without access rules
on the broker, that name is a claim: anybody may publish under it.  Where signatures are required, a frame without a
valid one counts for nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.serving.intake import checks
from coordinator.serving.intake.signatures import LabSecurity
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.codec import Envelope, Limits, Verify
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.records import record
from edge_sdk.protocol.topics import CONTROL, STATUS, Origin
from edge_sdk.transport.base import Incoming

NOBODY = "unknown"
"""The sender of frames on topics that name no device."""
FROM_STRANGERS = frozenset({"hello", "bye", STATUS, CONTROL})
"""The kinds of topics on which the coordinator listens to senders that do not take part."""


def booked_to(topic: str) -> str:
    """Return the sender for which a frame on this topic is counted."""
    return topics.sender(topic) or NOBODY


@record
class Opened:
    """A frame that passed the checks."""

    envelope: Envelope
    frame: bytes
    """In the form in which it is kept: not encrypted."""
    plain: bool = False
    """Whether it was sent plain in a lab that encrypts."""


class Intake:
    """Opens the frames of one federation."""

    def __init__(
        self, federation: str, within: Limits, known: Callable[[str], bool], security: LabSecurity | None = None
    ) -> None:
        """within: the sizes of legal frames.  known: whether a device takes part, or is on the roster.

        security: the keys of those who may send; None: signatures are not required.
        """
        self._federation, self._within, self._known, self._security = federation, within, known, security
        self.sender = NOBODY
        """For whom the last frame counts: its topic's device, or where signatures are required, who proved to be it."""

    def opened(self, incoming: Incoming) -> Opened:
        """Return the message of a frame.  Raises RemoteProtocolError, with the word of the check that it fails.

        In a lab that encrypts, a plain Hello is opened, so that its sender can be answered.
        """
        self.sender = NOBODY if self._security else booked_to(incoming.topic)
        with legible():
            return self._opened(incoming)

    def _opened(self, incoming: Incoming) -> Opened:
        origin = self._origin(incoming.topic)
        self._check_sender(origin)
        verify = self._verify(origin)
        frame = incoming.frame
        if origin.kind == CONTROL:
            return Opened(checks.opened_command(frame, self._federation, self._within, verify), frame)
        plain = False
        if origin.kind != STATUS and self._security is not None and self._security.encrypts and verify is not None:
            plain = origin.kind == "hello" and not codec.is_sealed(frame)
            if not plain:
                frame, verify = self._unsealed(frame, origin.device, verify), None
        return Opened(checks.opened(frame, origin.device, self._federation, self._within, verify), frame, plain)

    def _unsealed(self, frame: bytes, device: str, verify: Verify) -> bytes:
        sealing = self._security.sealing(self._federation, device) if self._security else None
        if sealing is None:
            raise RemoteProtocolError("encryption", f"{device} has enrolled no key for encryption: enrol it again")
        return sealing.opened(frame, self._within, verify)

    def _verify(self, origin: Origin) -> Verify | None:
        """Return the check of the signature, which takes note of who proved to be the sender; None: none is needed."""
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
        origin = topics.origin(topic)
        if origin is None or origin.federation != self._federation:
            raise RemoteProtocolError("topic", "a topic that this federation does not have")
        return origin

    def _check_sender(self, origin: Origin) -> None:
        if origin.kind not in FROM_STRANGERS and not self._known(origin.device):
            raise RemoteProtocolError("stranger", f"{origin.device} has not joined")
