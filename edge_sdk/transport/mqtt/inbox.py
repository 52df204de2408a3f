"""The queue between the network thread and whoever polls."""

from __future__ import annotations

import queue
import threading

from edge_sdk.transport.base import Incoming, TransportEvent

_MAX_FRAMES = 4096
_MAX_BYTES = 64 * 1024 * 1024


class Inbox:
    """Events in order of arrival.

    Once `full`, the network thread stops reading: frames then wait in the broker and in TCP's windows, not here.
    The caps are a good round's worth of uploads; a single larger frame still passes.
    """

    def __init__(self, max_frames: int = _MAX_FRAMES, max_bytes: int = _MAX_BYTES) -> None:
        self._events: queue.Queue[TransportEvent] = queue.Queue()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def put(self, event: TransportEvent) -> None:
        """Append; never blocks."""
        self._count(event, +1)
        self._events.put(event)

    def get(self, timeout_s: float) -> TransportEvent | None:
        """The oldest event, or None when none came within `timeout_s`."""
        try:
            event = self._events.get(block=timeout_s > 0, timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        self._count(event, -1)
        return event

    @property
    def full(self) -> bool:
        """Whether reading should pause."""
        return self._events.qsize() >= self._max_frames or self._held_bytes >= self._max_bytes

    def _count(self, event: TransportEvent, sign: int) -> None:
        if isinstance(event, Incoming):
            with self._lock:
                self._held_bytes += sign * len(event.frame)
