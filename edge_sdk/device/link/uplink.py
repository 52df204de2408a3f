"""Sends a device's messages: each as a frame with the next stamp, on the topic of its kind.

In a lab that encrypts, uploads are stored plain and encrypted when they are sent; other messages to the coordinator are
encrypted at once.  Status messages are never encrypted: all subscribers need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from edge_sdk.identity.sealing import Sealing
from edge_sdk.identity.signatures import FrameSigner
from edge_sdk.policy.policy import Objection
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import Bye, DeviceStatus, Hello, Message, PublicRequest, Upload
from edge_sdk.protocol.operator_messages import LogLines
from edge_sdk.transport.base import Transport, Will

KINDS: Mapping[type, str] = {Hello: "hello", Upload: "upd", Bye: "bye", PublicRequest: "get", LogLines: "log"}
"""The last topic level for each kind of message."""


class Uplink:
    """Sends the messages of one device to the coordinator of one federation."""

    def __init__(
        self,
        transport: Transport,
        *,
        federation: str,
        device: str,
        boot_epoch: int,
        signer: FrameSigner | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """boot_epoch: the number of starts of the device.  signer: signs each frame, and counts starts itself.

        sealing: encrypts messages for the coordinator, or None if the lab does not encrypt.
        """
        self._sealing = sealing
        self._transport, self._federation, self._device = transport, federation, device
        self.sent = 0
        """The number of frames made since this start, which stamps the next one."""
        self._sent_upload = b"", b""
        """Cache of the last upload sent: (key, encrypted frame).  Resending the same bytes lets a transfer resume.

        The key is the frame's header, or the whole frame in a lab that encrypts, where it has no stamp of its own."""
        self.begin(boot_epoch, signer)

    def begin(self, boot_epoch: int, signer: FrameSigner | None) -> None:
        """Begin a new start of the device."""
        self._sent_upload = b"", b""
        self._signer, self._boot_epoch = signer, boot_epoch if signer is None else signer.start

    def connect(self) -> None:
        """Connect, with a will through which the broker announces a lost connection."""
        self._transport.connect(topics.device_subscriptions(self._federation, self._device), self.will())

    def will(self) -> Will:
        """Return a will with the next stamp."""
        return Will(topics.device_status(self._federation, self._device), bytes(self._status("lost")))

    def tell(self, made: Callable[[Stamp], Frame]) -> None:
        """Send a Hello once, in the unsigned frame that is made with the next stamp."""
        self.sent += 1
        self._transport.send(self._topic(Hello), made(Stamp(self._boot_epoch, self.sent)))

    def send(self, message: Hello | Bye | PublicRequest | LogLines) -> None:
        """Send a message once; it is not stored for a retry."""
        self._transport.send(self._topic(type(message)), self._sealed(self._frame(message)))

    def frame(self, upload: Upload) -> bytes:
        """Return an upload as a frame to store; it may be sent many times."""
        return codec.encode(upload) if self._sealing is not None else self._frame(upload)

    def send_upload(self, frame: bytes) -> None:
        """Send a frame made by `frame`, in this start of the device or an earlier one."""
        known = frame if self._sealing is not None else frame[: codec.HEADER_BYTES]
        first = known != self._sent_upload[0]
        if first:
            self._sent_upload = known, self._sealed(frame) if self._sealing is not None else b""
        self._transport.send(self._topic(Upload), self._sent_upload[1] or frame, answered=first)

    def say_bye(self, reason: str) -> None:
        """Announce to the coordinator that this device will not come back."""
        self.send(Bye(federation=self._federation, device=self._device, reason=reason))

    def request_blocks(self, sha256: bytes, blocks: tuple[int, ...]) -> None:
        """Request these blocks of the public set with this hash."""
        self.send(PublicRequest(federation=self._federation, device=self._device, sha256=sha256, blocks=blocks))

    def send_log(self, request: bytes, lines: tuple[str, ...]) -> None:
        """Answer a request for the last log lines."""
        self.send(LogLines(federation=self._federation, device=self._device, request=request, lines=lines))

    def announce(self, state: str, objection: Objection | None = None) -> None:
        """Publish this device's state as a retained message, which the broker also gives to later subscribers.

        objection: why the device declines its assignments, or None if it computes them.
        """
        status = self._status(state, objection)
        self._transport.send(topics.device_status(self._federation, self._device), status, retain=True)

    def _status(self, state: str, objection: Objection | None = None) -> bytes:
        if objection is None and self._signer is None:
            self.sent += 1
            stamp = Stamp(self._boot_epoch, self.sent)
            return _plain_status(self._federation, state, self._boot_epoch).told(
                DeviceStatus(federation=self._federation, device=self._device, state=state, boot=self._boot_epoch),
                stamp,
            )
        status = DeviceStatus(
            federation=self._federation,
            device=self._device,
            state=state,
            boot=self._boot_epoch,
            declines=objection.reason if objection else None,
            why=one_line(objection.text) if objection else "",
            declines_round=objection.round if objection else None,
        )
        return self._frame(status)

    def _topic(self, message: type) -> str:
        return topics.up(self._federation, self._device, KINDS[message])

    def _sealed(self, frame: bytes) -> bytes:
        """Encrypt a frame for the coordinator, if the lab encrypts."""
        if self._sealing is None or self._signer is None:
            return frame
        return self._sealing.sealed(frame, self._signer)

    def _frame(self, message: Message) -> bytes:
        if self._signer is not None:
            return codec.encode(message, self._signer.stamp(), self._signer.sign)
        self.sent += 1
        return codec.encode(message, Stamp(self._boot_epoch, self.sent))


@lru_cache(maxsize=64)
def _plain_status(federation: str, state: str, boot_epoch: int) -> codec.Circular:
    """The status, without an objection, that many devices of a process announce."""
    return codec.Circular(DeviceStatus(federation=federation, device="any", state=state, boot=boot_epoch))
