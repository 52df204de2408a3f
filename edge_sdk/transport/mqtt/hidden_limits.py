"""Recognises messages that a broker does not accept although it states no limit."""

from __future__ import annotations

import threading
from typing import Protocol

_DISCONNECTS = 3
"""Disconnects in a row with the same message outstanding, after which the message is taken for the cause."""


class SentPacket(Protocol):
    """A message that was sent to the broker."""

    @property
    def topic(self) -> str:
        """The topic that it was published on."""

    @property
    def size_bytes(self) -> int:
        """The length of its payload in bytes."""


class HiddenLimits:
    """Recognises a message on which the broker disconnects, so that it does not block later messages for ever.

    A message is identified by topic and size, because a frame that is sent again may carry a new stamp.  After three
    disconnects in a row with the same message as the oldest unacknowledged one, the next sending of that message is
    dropped, so that the messages behind it can pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message: tuple[str, int] | None = None
        self._disconnects = 0

    def note_disconnect(self, oldest: SentPacket | None) -> bool:
        """Count a disconnect; returns whether `oldest`, the oldest unacknowledged message, is taken for the cause."""
        with self._lock:
            message = None if oldest is None else (oldest.topic, oldest.size_bytes)
            self._disconnects = self._disconnects + 1 if message == self._message else 1
            self._message = message
            return message is not None and self._disconnects >= _DISCONNECTS

    def note_acknowledged(self, sent: SentPacket) -> None:
        """Clear a message that the broker has acknowledged."""
        with self._lock:
            if self._message == (sent.topic, sent.size_bytes):
                self._message = None

    def reset(self) -> None:
        """Forget the message: it will not be sent in this form again."""
        with self._lock:
            self._message = None

    def should_drop(self, topic: str, size_bytes: int) -> bool:
        """Whether to drop this message now; when it is sent again, it may pass."""
        with self._lock:
            if self._message != (topic, size_bytes) or self._disconnects < _DISCONNECTS:
                return False
            self._disconnects -= 1
            return True
