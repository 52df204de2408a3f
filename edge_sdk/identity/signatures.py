"""Signatures of frames: the signed text, the signer of one start of a program, and checks against known keys.

The signed text is a domain, the frame's header, and the SHA-256 digest of its body.  The domain names the role of the
sender, so that a device's signature is never accepted as a coordinator's or an operator's.

A coordinator's new signing key is introduced by the key before it.  A link of this chain is the public key that signs
it (32 bytes), the public key that it introduces (32) and the signature (64).  The coordinator sends the whole chain
with its status, so that a device that was away for several changes finds its place.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import HEADER_BYTES, UNSIGNED, Stamp, Verify
from edge_sdk.protocol.messages import MAX_SUCCESSION_BYTES

KEY_ID_BYTES = len(UNSIGNED)
PUBLIC_BYTES = 32
SALT_BYTES = 16


class Role(str, Enum):
    """The role of a key's holder."""

    DEVICE = "device"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"


class Key(Protocol):
    """A private key that signs."""

    public: bytes

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""


class Genuine(Protocol):
    """Checks whether the holder of a public key signed a text."""

    def __call__(self, public: bytes, text: bytes, signature: bytes) -> bool:
        """Whether the signature is valid."""


def key_id(public: bytes) -> bytes:
    """Return the id of a public key: the first half of its SHA-256 digest."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


def signed_text(role: Role, signed: bytes) -> bytes:
    """Return the text that a sender in this role signs.  signed: header and body of the frame."""
    domain = f"edge-sdk frame v1 {role.value}\0".encode()
    return domain + signed[:HEADER_BYTES] + hashlib.sha256(memoryview(signed)[HEADER_BYTES:]).digest()


class FrameSigner:
    """Stamps and signs the frames of one program from one start on."""

    def __init__(self, key: Key, role: Role, start: int) -> None:
        """start: the number of starts of the key's holder, from a counter on the disk, not a clock."""
        self.start, self._key, self._role = start, key, role
        self.key_id = key_id(key.public)
        self._sequence = itertools.count(1)
        self.salt = secrets.token_bytes(SALT_BYTES)
        """Random bytes of this start, part of the keys with which its frames are encrypted."""

    def stamp(self) -> Stamp:
        """Return the stamp of the next frame."""
        return Stamp(self.start, next(self._sequence), self.key_id)

    def sign(self, signed: bytes) -> bytes:
        """Return the signature of a frame.  signed: its header and body."""
        return self._key.sign(signed_text(self._role, signed))


def verifier(role: Role, publics: Mapping[bytes, bytes], genuine: Genuine) -> Verify:
    """Return a check of signatures against known keys; publics: the public keys by their ids.

    The check raises RemoteProtocolError for an unknown key, which reports the reason.
    """

    def verify(key: bytes, signed: bytes, signature: bytes) -> bool:
        public = publics.get(key)
        if public is None:
            raise RemoteProtocolError("signature", f"signed with the unknown key {key.hex()[:8]}")
        return genuine(public, signed_text(role, signed), signature)

    return verify


SIGNATURE_BYTES = 64
LINK_BYTES = 2 * PUBLIC_BYTES + SIGNATURE_BYTES
_DOMAIN = b"edge-sdk successor v1\0"


def with_successor(chain: bytes, key: Key, successor: bytes) -> bytes:
    """Return a chain that ends with a new public key, introduced by the present private one."""
    link = key.public + successor + key.sign(_DOMAIN + successor)
    return (chain + link)[-MAX_SUCCESSION_BYTES:]


def newest_key(chain: bytes, known: bytes, genuine: Genuine) -> bytes:
    """Return the public key to which a chain leads from a known one: that itself if no genuine link begins there."""
    for begin in range(0, len(chain) - LINK_BYTES + 1, LINK_BYTES):
        link = chain[begin : begin + LINK_BYTES]
        old, new = link[:PUBLIC_BYTES], link[PUBLIC_BYTES : 2 * PUBLIC_BYTES]
        if old == known and genuine(old, _DOMAIN + new, link[2 * PUBLIC_BYTES :]):
            known = new
    return known
