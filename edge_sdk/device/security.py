"""Signs the frames of a device, and checks those of its coordinator, with the keys of an identity folder."""

from __future__ import annotations

from edge_sdk.identity.folder import SEEN, Identity
from edge_sdk.identity.seen import SeenStarts
from edge_sdk.identity.signatures import FrameSigner
from edge_sdk.protocol.codec import Stamp


class DeviceSecurity:
    """The identity of a device in one federation."""

    def __init__(self, identity: Identity, federation: str) -> None:
        self._identity = identity
        self.verify = identity.coordinator_verifier()
        """Checks the signature of a frame that comes."""
        self._seen = SeenStarts(identity.folder / SEEN / federation)

    def started(self) -> FrameSigner:
        """Count a start of the device, durably; returns the signer of its frames.  Raises StoreError."""
        return self._identity.started()

    def check_start(self, stamp: Stamp) -> None:
        """Take note of the coordinator's start, durably.

        Raises RemoteProtocolError for a frame of an earlier start than one that was seen, StoreError if the disk fails.
        """
        self._seen.check(stamp.boot_epoch)
