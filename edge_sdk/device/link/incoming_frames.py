"""Opens a device's incoming frames, checks them with its identity, and counts refused ones by word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity.sealing import sealed_limits
from edge_sdk.protocol.entry_guard import EntryGuard, legible
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, Envelope, Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.base import Transport


class IncomingFrames:
    """Opens frames within the federation's limits; each kind of forged frame is reported to the owner once."""

    def __init__(
        self, device: str, transport: Transport, security: DeviceSecurity | None, tell: Callable[[str], None]
    ) -> None:
        """security: checks and decrypts frames, or None if they are plain.  tell: receives lines for the owner."""
        self._device, self._transport, self._security, self._tell = device, transport, security, tell
        self._told = set[str]()
        """The words of the lines already given to `tell`."""
        self.unread = ""
        """Why frames of another version cannot be read, and which side to upgrade; empty if none came."""
        self._limits = CONTROL_LIMITS
        """The limits of frames after decryption."""
        self._guard = EntryGuard(device)
        self.refused, self._reported = self._guard.refused, Counter[str]()
        """Refused frames by word, and the part of them already reported in uploads."""
        self.accept_up_to(CONTROL_LIMITS)

    def accept_up_to(self, limits: Limits) -> None:
        """Accept frames up to this size from now on."""
        self._limits = limits
        sealed = self._security is not None and self._security.sealing is not None
        self._transport.accept_up_to((sealed_limits(limits) if sealed else limits).frame_bytes)

    def opened(self, frame: Frame, known: codec.CommonKnowledge | None) -> tuple[Envelope, Frame]:
        """Return the message in a frame, and the frame to store.  Raises RemoteProtocolError.

        known: decoded knowledge shared by simulated devices of this process, or None.
        """
        try:
            with legible():
                return self._opened(frame, known)
        except RemoteProtocolError as error:
            if error.kind == "version":
                self.unread = f"a coordinator answers, and this device cannot read it: {_unread(error)}"
                self.tell_once("version", self.unread)
            elif self._security is not None and error.kind in ("signature", "replayed", "encryption"):
                self.tell_once(error.kind, f"refused a frame that claims to be the coordinator's: {error}")
            raise

    def _opened(self, frame: Frame, known: codec.CommonKnowledge | None) -> tuple[Envelope, Frame]:
        if self._security is not None:
            return self._security.opened(bytes(frame), self._limits)
        if known is not None:
            return known.decode(frame, self._limits, self._device), frame
        return codec.decode(bytes(frame), self._limits), frame

    def tell_once(self, word: str, line: str) -> bool:
        """Give the owner a line, but only the first under each word; returns whether this was the first."""
        if word in self._told:
            return False
        self._told.add(word)
        self._tell(line)
        return True

    def count_refused(self, word: str, line: str) -> None:
        """Count a refused frame and log why; the log is limited in a flood."""
        self._guard.refuse(word, line)

    def refused_since(self) -> dict[str, int]:
        """Return the frames refused since the last call, by word."""
        if not self.refused:
            return {}
        new = self.refused - self._reported
        self._reported = self.refused.copy()
        return dict(new)


def _unread(error: RemoteProtocolError) -> str:
    """Rewrite the codec's error about another version from this device's point of view."""
    fault, _, side = str(error).partition(": upgrade ")
    older = "device" if side == "this side" else "coordinator"
    return f"{fault.replace('this side', 'this device')}; upgrade the {older}'s edge-sdk"
