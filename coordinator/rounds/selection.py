"""Whom a round asks, where it does not ask everybody, and how many: pure, and the same after a restart.

Devices are ranked by a hash of (seed, round, device), and the first ones are asked.  Whoever joins or goes changes the
ranks of nobody else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection

_PRIOR = 2
"""Answers that are assumed before any is measured: the first round asks for as many as are wanted."""
_LEAST_RATE = 0.1
"""However few answer, no more than ten times as many are asked."""


def select(pool: Collection[str], count: int, seed: int, round_: int) -> frozenset[str]:
    """So many of these devices, or all where there are fewer."""
    return frozenset(sorted(pool, key=lambda device: _rank(seed, round_, device))[:count])


def invitations(wanted: int, asked: int, answered: int) -> int:
    """How many to ask for `wanted` answers, after `answered` of `asked` came: wanted / rate, rounded up.

    rate = (answered + 2) / (asked + 2), at least 0.1.
    """
    rate = max(_LEAST_RATE, (answered + _PRIOR) / (asked + _PRIOR))
    return math.ceil(wanted / min(1.0, rate))


def _rank(seed: int, round_: int, device: str) -> bytes:
    return hashlib.sha256(f"{seed} {round_} {device}".encode()).digest()
