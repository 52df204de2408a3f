"""Detects messages that a broker rejects without stating a limit, and remembers the length that it accepts."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edge_sdk.at_rest.files import replace_durably
from edge_sdk.transport.chunks import CHUNK_BYTES, HEADER_BYTES, MIN_CHUNK_BYTES

_log = logging.getLogger(__name__)

_DISCONNECTS = 3
"""Disconnects in a row with the same message outstanding, after which it is considered the cause."""
_SHORT_BYTES = MIN_CHUNK_BYTES + HEADER_BYTES
"""No chunk message can be shorter than this."""


class SentPacket(Protocol):
    """A message that was sent to the broker."""

    @property
    def topic(self) -> str:
        """The topic that it was published on."""

    @property
    def size_bytes(self) -> int:
        """The length of its payload in bytes."""


class HiddenLimits:
    """Detects a message on which the broker disconnects, so that it does not block later messages permanently.

    A message is identified by topic and size, because a resent frame may carry a new stamp.  After three disconnects in
    a row with the same message as the oldest unacknowledged one, its next sending is dropped, so that the messages
    behind it can pass.

    Long messages count together, whatever their topics: answers to many receivers come in varying order, and all fail
    because of their length.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message: tuple[str, int] | None = None
        self._disconnects = 0
        self._long_disconnects = 0
        self._long_bytes: int | None = None
        """The length of the shortest message of those disconnects."""

    def note_disconnect(self, oldest: SentPacket | None) -> bool:
        """Count a disconnect; returns whether `oldest`, the oldest unacknowledged message, is the likely cause."""
        with self._lock:
            message = None if oldest is None else (oldest.topic, oldest.size_bytes)
            self._disconnects = self._disconnects + 1 if message == self._message else 1
            self._message = message
            if oldest is not None and oldest.size_bytes > _SHORT_BYTES:
                self._long_disconnects += 1
                self._long_bytes = min(oldest.size_bytes, self._long_bytes or oldest.size_bytes)
            return message is not None and self._disconnects >= _DISCONNECTS

    @property
    def too_long_bytes(self) -> int | None:
        """The length in bytes that the broker seems to reject in one message, if any."""
        with self._lock:
            return self._long_bytes if self._long_disconnects >= _DISCONNECTS else None

    def note_acknowledged(self, sent: SentPacket) -> None:
        """Clear an acknowledged message, and all messages up to its length."""
        with self._lock:
            if self._long_bytes is not None and sent.size_bytes >= self._long_bytes:
                self._forget_long()
            if self._message == (sent.topic, sent.size_bytes):
                self._message = None

    def reset(self) -> None:
        """Forget the messages, because they will be sent in another form."""
        with self._lock:
            self._message = None
            self._forget_long()

    def should_drop(self, topic: str, size_bytes: int) -> bool:
        """Whether to drop this message now; when it is sent again, it may pass."""
        with self._lock:
            if self._message != (topic, size_bytes) or self._disconnects < _DISCONNECTS:
                return False
            self._disconnects -= 1
            return True

    def _forget_long(self) -> None:
        self._long_disconnects, self._long_bytes = 0, None


class KeptChunks:
    """The length of chunks that a broker accepted, kept in a file across processes."""

    def __init__(self, path: Path | None, broker: str) -> None:
        """path: None keeps nothing.  broker: the address; an entry for another broker is ignored."""
        self._path, self._broker = path, broker

    def chunk_bytes(self) -> int:
        """Return the initial length in bytes: the usual one, unless this broker accepted only shorter chunks."""
        known: object = None
        if self._path is not None:
            with suppress(OSError, ValueError, RecursionError):
                known = json.loads(self._path.read_bytes())
        if not isinstance(known, dict) or known.get("broker") != self._broker:
            return CHUNK_BYTES
        found = known.get("chunk_bytes")
        if type(found) is not int or not MIN_CHUNK_BYTES <= found < CHUNK_BYTES:
            return CHUNK_BYTES
        _log.info(
            "broker %s took chunks of %d bytes; if its limit was raised, delete %s", self._broker, found, self._path
        )
        return found

    def keep(self, chunk_bytes: int) -> None:
        """Keep the length of chunks, in bytes.  If the disk fails, the next process detects it again."""
        if self._path is not None:
            with suppress(OSError):
                replace_durably(self._path, json.dumps({"broker": self._broker, "chunk_bytes": chunk_bytes}).encode())
