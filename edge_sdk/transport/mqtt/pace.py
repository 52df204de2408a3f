"""Limits the rate at which one client publishes; hosted brokers disconnect or charge clients that exceed theirs."""

from __future__ import annotations

import math

_LEAST_WAIT_S = 1e-6
"""Shorter waits are rounding errors, and count as none."""


class _TokenBucket:
    """A token bucket that holds the tokens of one second; one message may take more than are left."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = self._left = rate_per_s
        self._filled_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Seconds until the number of tokens is no longer negative."""
        if now_s > self._filled_s:
            passed_s = min(now_s - self._filled_s, 1e6)
            self._left = min(self._rate_per_s, self._left + self._rate_per_s * passed_s)
            self._filled_s = now_s
        wait_s = -self._left / self._rate_per_s
        return wait_s if wait_s > _LEAST_WAIT_S else 0.0

    def spend(self, amount: float) -> None:
        """Take tokens."""
        self._left -= amount


class Pace:
    """The maximum messages and bytes per second, averaged over one second; None sets no limit."""

    def __init__(self, publishes_per_s: float | None = None, bytes_per_s: float | None = None) -> None:
        self._publishes = None if publishes_per_s is None else _TokenBucket(publishes_per_s)
        self._bytes = None if bytes_per_s is None else _TokenBucket(bytes_per_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message may be sent."""
        return max((bucket.wait_s(now_s) for bucket in (self._publishes, self._bytes) if bucket), default=0.0)

    def spend(self, size_bytes: int) -> None:
        """Count a message of `size_bytes` bytes that is being sent."""
        if self._publishes:
            self._publishes.spend(1.0)
        if self._bytes:
            self._bytes.spend(size_bytes)


def cloud_safe() -> Pace:
    """The limits of the strictest of the large hosted brokers for one connection: 10 messages and 512 KB a second."""
    return Pace(publishes_per_s=10.0, bytes_per_s=512_000.0)
