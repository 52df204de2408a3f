"""Frames handed to the MQTT client and not yet acknowledged by the broker."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

_MAX_FRAMES = 32768
_MAX_BYTES = 256 * 1024 * 1024
_STRIKES = 3
_LOOK_UP_S = 0.05


class Receipt(Protocol):
    """What the MQTT client gives for a publish."""

    def is_published(self) -> bool:
        """Whether the broker has acknowledged it."""

    def wait_for_publish(self, timeout: float | None = None) -> None:
        """Wait for that."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One frame on its way."""

    topic: str
    size_bytes: int
    receipt: Receipt


class Suspect:
    """Recognises a frame that makes the broker hang up, so that it cannot for ever block what stands behind it.

    A frame is known by topic and size: whoever sends it again may stamp it anew.  After three disconnects in a row
    with the same frame as the oldest unacknowledged one, its next sending is dropped, and that lets others pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frame: tuple[str, int] | None = None
        self._strikes = 0

    def hung_up(self, oldest: Sent | None) -> bool:
        """Note a disconnect; True when it makes `oldest` a frame to drop."""
        with self._lock:
            frame = None if oldest is None else (oldest.topic, oldest.size_bytes)
            self._strikes = self._strikes + 1 if frame == self._frame else 1
            self._frame = frame
            return frame is not None and self._strikes >= _STRIKES

    def acknowledged(self, sent: Sent) -> None:
        """Clear a frame that got through."""
        with self._lock:
            if self._frame == (sent.topic, sent.size_bytes):
                self._frame = None

    def should_drop(self, topic: str, size_bytes: int) -> bool:
        """Whether to drop this sending; the one after it may try again."""
        with self._lock:
            if self._frame != (topic, size_bytes) or self._strikes < _STRIKES:
                return False
            self._strikes -= 1
            return True


class InFlight:
    """One connection's unacknowledged frames, bounded in number and bytes."""

    def __init__(self, suspect: Suspect, max_frames: int = _MAX_FRAMES, max_bytes: int = _MAX_BYTES) -> None:
        self._suspect = suspect
        self._frames: deque[Sent] = deque()
        self._held_bytes = 0
        self._hopeless = False
        self._lock = threading.Lock()
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more frame fits; one that is alone always does."""
        with self._lock:
            self._forget_acknowledged()
            fits = len(self._frames) < self._max_frames and self._held_bytes + size_bytes <= self._max_bytes
            return fits or not self._frames

    def add(self, sent: Sent) -> None:
        """Remember a frame until its receipt says published."""
        with self._lock:
            self._frames.append(sent)
            self._held_bytes += sent.size_bytes

    def oldest(self) -> Sent | None:
        """The frame that the broker should have acknowledged next."""
        with self._lock:
            self._forget_acknowledged()
            return self._frames[0] if self._frames else None

    def give_up(self) -> None:
        """The connection is gone: nothing more will be acknowledged."""
        self._hopeless = True

    def wait(self, timeout_s: float) -> None:
        """Wait until all is acknowledged, at most `timeout_s`, and not for a connection that is gone."""
        deadline_s = time.monotonic() + timeout_s
        while not self._hopeless and (sent := self.oldest()) and (left_s := deadline_s - time.monotonic()) > 0:
            sent.receipt.wait_for_publish(min(left_s, _LOOK_UP_S))

    def _forget_acknowledged(self) -> None:
        while self._frames and self._frames[0].receipt.is_published():
            sent = self._frames.popleft()
            self._held_bytes -= sent.size_bytes
            self._suspect.acknowledged(sent)
