"""The public samples of an exchange, and the digest of such a batch: the same on both sides."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.protocol.messages import FederationSpec

_WORDS_IN_BLOCK = 4
"""The number of 64-bit words in a SHA-256."""
_DRAWS_KEPT = 32
"""The number of cached draws.  A simulated fleet repeats a few draws; at the largest legal batch they take 16 MiB."""


def batch_indices(spec: FederationSpec, round_: int, iteration: int, size: int) -> Ints:
    """Return the public samples of an exchange: (size,), the same on every device and on the coordinator.

    Where uploads of different rounds are combined (`spec.buffered`), they are the same in all rounds.
    They repeat only if `size` exceeds the number of samples.  The draw uses only SHA-256, so that a device in any
    language can repeat it (docs/reference/protocol.md, "The public set").
    """
    if spec.public is None:
        raise ValueError("this federation has no public set")
    return _draw(spec.seed, 0 if spec.buffered else round_, iteration, size, spec.public.count)


@lru_cache(maxsize=_DRAWS_KEPT)
def _draw(seed: int, round_: int, iteration: int, size: int, count: int) -> Ints:
    """Return the first `size` places of a Fisher-Yates shuffle of 0..count-1: (size,), read-only."""
    words = _words(f"public/{seed}/{round_}/{iteration}", size)
    if size > count:
        drawn = (words % count).astype(np.int64)
    else:
        places = np.arange(size)
        others = places + (words % (count - places).astype(np.uint64)).astype(np.int64)
        moved: dict[int, int] = {}
        drawn = np.empty(size, np.int64)
        for place, other in enumerate(others.tolist()):
            drawn[place] = moved.get(other, other)
            moved[other] = moved.get(place, place)
    drawn.flags.writeable = False
    return drawn


def _words(name: str, count: int) -> NDArray[np.uint64]:
    """Return (count,) words of 64 bits: the SHA-256 of NAME/0, NAME/1 ..., four little-endian words each."""
    blocks = -(-count // _WORDS_IN_BLOCK)
    stream = b"".join(hashlib.sha256(f"{name}/{block}".encode()).digest() for block in range(blocks))
    return np.frombuffer(stream, "<u8")[:count]


def batch_digest(spec: FederationSpec, indices: Ints) -> bytes:
    """Return 8 bytes that identify a batch: equal only for the same samples in the same order (warning W6 of FedAL)."""
    if spec.public is None:
        raise ValueError("this federation has no public set")
    return hashlib.sha256(spec.public.sha256 + indices.astype("<i8").tobytes()).digest()[:8]
