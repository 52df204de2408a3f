"""Recognises what a broker will not take, though it never says so."""

from __future__ import annotations

import threading
from typing import Protocol

_STRIKES = 3


class SentPacket(Protocol):
    """A message that was handed to the broker."""

    @property
    def topic(self) -> str:
        """Where to."""

    @property
    def size_bytes(self) -> int:
        """How long."""


class HiddenLimits:
    """Recognises a message that makes the broker hang up, so that it cannot for ever block what stands behind it.

    A message is known by topic and size: whoever sends it again may stamp it anew.  After three disconnects in a row
    with the same one as the oldest unacknowledged, its next sending is dropped, and that lets others pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message: tuple[str, int] | None = None
        self._strikes = 0

    def hung_up(self, oldest: SentPacket | None) -> bool:
        """Note a disconnect; True when it makes `oldest` one to drop."""
        with self._lock:
            message = None if oldest is None else (oldest.topic, oldest.size_bytes)
            self._strikes = self._strikes + 1 if message == self._message else 1
            self._message = message
            return message is not None and self._strikes >= _STRIKES

    def acknowledged(self, sent: SentPacket) -> None:
        """Clear a message that got through."""
        with self._lock:
            if self._message == (sent.topic, sent.size_bytes):
                self._message = None

    def cleared(self) -> None:
        """Begin anew: what the broker hung up on will not be sent in this form again."""
        with self._lock:
            self._message = None

    def should_drop(self, topic: str, size_bytes: int) -> bool:
        """Whether to drop this sending; the one after it may try again."""
        with self._lock:
            if self._message != (topic, size_bytes) or self._strikes < _STRIKES:
                return False
            self._strikes -= 1
            return True
