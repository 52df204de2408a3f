"""How fast one client may publish; hosted brokers cut off, or bill, whoever goes beyond their limits."""

from __future__ import annotations

import math

_INSTANT_S = 1e-6
"""Shorter waits are rounding."""


class _Bucket:
    """An allowance that fills up steadily to a second's worth, and may be overdrawn by one message."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = self._left = rate_per_s
        self._filled_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Seconds until it is not overdrawn any more."""
        if now_s > self._filled_s:
            passed_s = min(now_s - self._filled_s, 1e6)
            self._left = min(self._rate_per_s, self._left + self._rate_per_s * passed_s)
            self._filled_s = now_s
        wait_s = -self._left / self._rate_per_s
        return wait_s if wait_s > _INSTANT_S else 0.0

    def spend(self, amount: float) -> None:
        """Draw."""
        self._left -= amount


class Pace:
    """At most so many messages and bytes a second, averaged over a second of use; None: as fast as the link is."""

    def __init__(self, publishes_per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        self._publishes = None if publishes_per_s is None else _Bucket(publishes_per_s)
        self._bytes = None if bytes_per_s is None else _Bucket(bytes_per_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message may go; 0 for now."""
        return max((bucket.wait_s(now_s) for bucket in (self._publishes, self._bytes) if bucket), default=0.0)

    def spend(self, size_bytes: int) -> None:
        """Note a message."""
        if self._publishes:
            self._publishes.spend(1.0)
        if self._bytes:
            self._bytes.spend(size_bytes)


def cloud_safe() -> Pace:
    """What the strictest of the large hosted brokers takes from one connection: 10 messages and 512 KB a second."""
    return Pace(publishes_per_s=10.0, bytes_per_s=512_000.0)
