"""Encrypted frames between a device and its coordinator: the derivation of keys, and the hiding of sizes.

Each end has an X25519 key.  Every start of a sender has a key of its own, which both ends derive from the agreed
secret: the start, random bytes of it, the direction, the federation and the device are in it.  The nonce is the
sequence number of the frame, which counts within the start.  So no nonce is used twice with one key; also not by a copy
of an identity folder or after a backup, whose starts repeat, since their random bytes differ.
"""

from __future__ import annotations

from typing import Protocol

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity.signatures import SALT_BYTES, FrameSigner, Role
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import HEADER_BYTES, SIGNATURE_BYTES, Limits, Stamp, Verify

TAG_BYTES = 16
LENGTH_BYTES = 4
LEAST_BYTES = 1024
"""The smallest size class of what is encrypted; each further one is twice as large."""
_UP, _DOWN = b"up", b"down"


class Agreement(Protocol):
    """The secret that two X25519 keys agree on."""

    def encrypt(self, salt: bytes, context: bytes, nonce: bytes, text: bytes, header: bytes) -> bytes:
        """Return a text encrypted with the key for this salt and context, and its tag; header: is protected, too."""

    def decrypt(self, salt: bytes, context: bytes, nonce: bytes, sealed: memoryview, header: bytes) -> bytes | None:
        """Return the text, or None if it was changed, or encrypted with another key."""


class ExchangeKey(Protocol):
    """A private X25519 key."""

    public: bytes

    def agreed(self, peer: bytes) -> Agreement:
        """Return the agreement with the holder of another key.  Raises ValueError for an invalid public key."""


def padded_bytes(body_bytes: int) -> int:
    """Return the size class of a body: the smallest power of two, 1 KiB at least, that holds it and its length."""
    return max(LEAST_BYTES, 1 << (LENGTH_BYTES + body_bytes - 1).bit_length())


def sealed_body_bytes(body_bytes: int) -> int:
    """Return the length of a body after encryption."""
    return SALT_BYTES + padded_bytes(body_bytes) + TAG_BYTES


def sealed_limits(limits: Limits) -> Limits:
    """Return the limits of encrypted frames which hold the bodies of legal frames."""
    body_bytes = sealed_body_bytes(limits.frame_bytes - HEADER_BYTES)
    return Limits(HEADER_BYTES + SIGNATURE_BYTES + body_bytes, limits.tensor_bytes)


class Sealing:
    """Encrypts and opens the frames between one device and its coordinator, as one of them."""

    def __init__(self, key: ExchangeKey, peer: bytes, *, federation: str, device: str, role: Role) -> None:
        """peer: the other end's public key.  role: of this end.  Raises ValueError for an invalid `peer`."""
        self.peer = peer
        self._agreement = key.agreed(peer)
        self._ends = b"\0".join((federation.encode(), device.encode()))
        self._sends, self._hears = (_UP, _DOWN) if role is Role.DEVICE else (_DOWN, _UP)

    def sealed(self, frame: bytes, signer: FrameSigner) -> bytes:
        """Return a frame with the same message, encrypted and signed, with the signer's next stamp."""
        stamp = signer.stamp()
        context = self._context(self._sends, stamp)

        def encrypt(header: bytes, body: memoryview) -> bytes:
            padding = bytes(padded_bytes(len(body)) - LENGTH_BYTES - len(body))
            text = b"".join((len(body).to_bytes(LENGTH_BYTES, "little"), body, padding))
            return signer.salt + self._agreement.encrypt(signer.salt, context, _nonce(stamp), text, header)

        return codec.seal_frame(frame, stamp, signer.sign, sealed_body_bytes, encrypt)

    def opened(self, frame: bytes, limits: Limits, verify: Verify) -> bytes:
        """Return the plain, unsigned frame of an encrypted one, after its signature was found valid.

        limits: of plain frames.  Raises RemoteProtocolError if the frame is illegal, or not encrypted for this end.
        """

        def decrypt(header: bytes, sealed: memoryview, stamp: Stamp) -> memoryview:
            salt, rest = bytes(sealed[:SALT_BYTES]), sealed[SALT_BYTES:]
            text = self._agreement.decrypt(salt, self._context(self._hears, stamp), _nonce(stamp), rest, header)
            if text is None or len(text) < LENGTH_BYTES:
                raise RemoteProtocolError("encryption", "encrypted with another key, or for another recipient")
            body_bytes = int.from_bytes(text[:LENGTH_BYTES], "little")
            if len(text) != padded_bytes(body_bytes):
                raise RemoteProtocolError("encryption", "the encrypted length does not fit the size class")
            return memoryview(text)[LENGTH_BYTES : LENGTH_BYTES + body_bytes]

        return codec.unseal_frame(frame, sealed_limits(limits), verify, decrypt)

    def _context(self, direction: bytes, stamp: Stamp) -> bytes:
        start = stamp.boot_epoch.to_bytes(8, "little")
        return b"\0".join((b"edge-sdk seal v1", direction, self._ends, start))


def _nonce(stamp: Stamp) -> bytes:
    return bytes(4) + stamp.sequence.to_bytes(8, "little")
