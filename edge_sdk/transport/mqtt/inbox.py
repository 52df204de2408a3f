"""The queue between the network thread, which puts events in, and the thread that polls the transport."""

from __future__ import annotations

import queue
import threading

from edge_sdk.transport.base import Incoming, TransportEvent

_MAX_FRAMES = 4096
_MAX_BYTES = 64 * 1024 * 1024


class Inbox:
    """Events in the order of their arrival.

    While it is `full`, the network thread stops reading, so that frames wait in the broker and in TCP's buffers.  The
    limits hold the uploads of a large round; a single frame above the limit still passes.
    """

    def __init__(self, max_frames: int = _MAX_FRAMES, max_bytes: int = _MAX_BYTES) -> None:
        self._events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def put(self, event: TransportEvent) -> None:
        """Append an event; never blocks, and accepts the event even when full."""
        self._count(event, +1)
        self._events.put(event)

    def get(self, timeout_s: float) -> TransportEvent | None:
        """Return the oldest event, or None if there is none within `timeout_s` seconds."""
        try:
            event = self._events.get(block=timeout_s > 0, timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        self._count(event, -1)
        return event

    @property
    def full(self) -> bool:
        """Whether the network thread should stop reading."""
        return self._events.qsize() >= self._max_frames or self._held_bytes >= self._max_bytes

    def _count(self, event: TransportEvent, sign: int) -> None:
        if isinstance(event, Incoming):
            with self._lock:
                self._held_bytes += sign * len(event.frame)
