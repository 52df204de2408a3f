"""Draws the devices of a round that invites only some of them: how many, and which ones.

The functions are pure, so a restart draws the same devices.  Devices are ranked by a hash of (seed, round, device), and
the first ones are invited.  A device that joins or leaves changes no other device's rank.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Collection

_PRIOR = 2
"""Prior: this many devices asked, and all answered.  So the first round invites exactly as many as it wants."""
_LEAST_RATE = 0.1
"""Lowest assumed rate of answers, so that a round invites at most ten times the wanted number."""


def select(pool: Collection[str], count: int, seed: int, round_: int) -> frozenset[str]:
    """Choose `count` devices of the pool, or all of them if there are fewer."""
    if count >= len(pool):
        return frozenset(pool)
    begun = hashlib.sha256(f"{seed} {round_} ".encode())  # continued for each device: half the time of a new hash
    return frozenset(heapq.nsmallest(count, pool, key=lambda device: _rank(begun.copy(), device)))


def invitations(wanted: int, asked: int, answered: int) -> int:
    """The number of devices to invite for `wanted` answers, if `answered` of `asked` came: wanted / rate, rounded up.

    rate = (answered + 2) / (asked + 2), at least 0.1.
    """
    rate = max(_LEAST_RATE, (answered + _PRIOR) / (asked + _PRIOR))
    return math.ceil(wanted / min(1.0, rate))


def _rank(begun: hashlib._Hash, device: str) -> bytes:
    begun.update(device.encode())
    return begun.digest()
