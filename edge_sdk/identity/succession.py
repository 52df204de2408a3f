"""A coordinator's new signing key, introduced by the key before: a chain that a device follows from the key it knows.

A link is the public key that signs it (32 bytes), the public key that it introduces (32) and the signature (64).  The
coordinator sends the whole chain with its status, so that a device that was away for several changes finds its place.
"""

from __future__ import annotations

from edge_sdk.identity.signatures import PUBLIC_BYTES, Genuine, Key
from edge_sdk.protocol.messages import MAX_SUCCESSION_BYTES

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
