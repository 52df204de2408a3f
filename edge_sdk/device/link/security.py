"""Signs and encrypts the frames of a device, and checks those of its coordinator, with the keys of its identity."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import SEEN, Identity
from edge_sdk.identity.signatures import FrameSigner
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Envelope, Limits, Stamp
from edge_sdk.protocol.messages import CoordinatorStatus, Refusal

_MOST_STATUS_BYTES = 8192
"""More than the longest status of a coordinator."""


class DeviceSecurity:
    """The identity of a device in one federation."""

    def __init__(self, identity: Identity, federation: str) -> None:
        self._identity = identity
        self._verify = identity.coordinator_verifier()
        self.sealing = identity.sealing(bytes.fromhex(identity.about.sealing), federation, identity.name)
        """Encrypts and opens frames, or None if the lab does not encrypt."""
        self._seen = SeenStarts(identity.folder / SEEN / federation)

    def started(self) -> FrameSigner:
        """Count a start of the device, durably; returns the signer of its frames.  Raises StoreError."""
        return self._identity.started()

    def opened(self, frame: bytes, limits: Limits) -> tuple[Envelope, bytes]:
        """Return the message in a frame of the coordinator, and the frame to store.

        The frame's start is recorded durably.  Raises RemoteProtocolError for a frame that is not the coordinator's,
        belongs to an earlier start than the newest seen, or is plain where it must be encrypted; StoreError if the disk
        fails.
        """
        if self.sealing is None or not codec.is_sealed(frame):
            try:
                envelope = codec.decode(frame, limits, self._verify)
            except RemoteProtocolError as error:
                if error.kind != "signature" or not self._follows(frame, limits):
                    raise
                envelope = codec.decode(frame, limits, self._verify)
            self._check_plain(envelope)
        else:
            frame = self.sealing.opened(frame, limits, self._verify)
            envelope = codec.decode(frame, limits)
        self._check_start(envelope.stamp)
        return envelope, frame

    def _follows(self, frame: bytes, limits: Limits) -> bool:
        """Believe the coordinator's new signing key, if the one that this device knows introduces it in this frame.

        The frame must be signed with the new key, and be no earlier than the newest start seen.  Raises StoreError.
        """
        if len(frame) > _MOST_STATUS_BYTES:
            return False
        envelope = codec.decode(frame, limits)
        if not isinstance(envelope.message, CoordinatorStatus):
            return False
        believing = self._identity.believing(envelope.message.succession)
        if believing is None or envelope.stamp.boot_epoch < self._seen.newest:
            return False
        verify = believing.coordinator_verifier()
        codec.decode(frame, limits, verify)
        believing.keep()
        self._identity, self._verify = believing, verify
        return True

    def _check_plain(self, envelope: Envelope) -> None:
        """Refuse a plain frame in a lab that encrypts, except the messages that explain a missing common key."""
        if self.sealing is not None and not isinstance(envelope.message, (CoordinatorStatus, Refusal)):
            kind = type(envelope.message).__name__
            raise RemoteProtocolError(
                "encryption",
                f"a plain {kind}, but this identity encrypts: start the coordinator with the lab of its claim, "
                "or enrol this device in the coordinator's lab",
            )

    def _check_start(self, stamp: Stamp) -> None:
        self._seen.check(stamp.boot_epoch)


# The newest start of a coordinator that a device has seen: frames of earlier starts are replayed or out of date.


class SeenStarts:
    """The newest start of one coordinator in one federation, in a file that survives a power cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.newest = key_files.read_counter(path)
        """The newest start so far, or 0 before the first."""

    def check(self, start: int) -> None:
        """Record a start before any of its frames is used; durable on return.

        Raises RemoteProtocolError if a later one was seen, StoreError if the disk fails.
        """
        if start < self.newest:
            raise RemoteProtocolError(
                "replayed",
                f"from the coordinator's start {start}, but start {self.newest} was seen: the frame is replayed, or "
                "the coordinator's keys were restored from a backup (run there: edge-sdk lab restored DIR)",
            )
        if start > self.newest:
            key_files.write_whole(self._path, key_files.counter_text(start), key_files.PRIVATE)
            self.newest = start
