"""What comes in on a connection: messages are screened, long frames assembled, and events wait to be polled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.transport import chunks
from edge_sdk.transport.base import Incoming, Rejected, Screen, TransportEvent
from edge_sdk.transport.chunks import ChunkRequest, MissingChunks, Reassembly
from edge_sdk.transport.mqtt.send_queue import SendQueue


class ChunkedLink:
    """The receiving end for chunks and chunk requests of one MQTT connection."""

    def __init__(self, send_queue: SendQueue, assembly: Reassembly) -> None:
        self._send_queue, self._assembly = send_queue, assembly
        self.screen: Screen | None = None
        """Decides on every message before it is stored.  None accepts every message."""

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message is accepted; chunk: whether it is a packet of a long frame."""
        return self.screen is None or self.screen.passes(topic, payload, now_s, chunk=chunk)

    def receive(self, topic: str, payload: bytes, now_s: float) -> Incoming | Rejected | None:
        """Process a packet; returns the frame that it completes, the reason for its refusal, or None."""
        try:
            packet = chunks.unpack_packet(payload)
            if isinstance(packet, ChunkRequest):
                self._send_queue.requeue_chunks(packet)
                return None
            result = self._assembly.take(topic, packet, now_s)
        except RemoteProtocolError as error:
            return Rejected(topic, error.kind, str(error))
        if isinstance(result, bytes):
            return Incoming(topic, result)
        if result is not None:
            self._request(result)
        return None

    def check_timeouts(self, now_s: float) -> Iterator[Rejected]:
        """Request overdue chunks; yields the screen's refusals, and each chunk set given up."""
        if self.screen is not None:
            yield from self.screen.refused(now_s)
        for topic, reason in self._assembly.expired(now_s):
            yield Rejected(topic, "incomplete", reason)
        for missing in self._assembly.stalled(now_s):
            self._request(missing)

    def _request(self, missing: MissingChunks) -> None:
        topic = topics.chunk_request_topic(missing.topic)
        if topic is not None:
            self._send_queue.put(topic, chunks.pack_request(missing.layout, missing.ranges))


# -- The queue of events from the network thread to the thread that polls the transport -------------------------------

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
        """Return the oldest event, or None if none occurs within `timeout_s` seconds."""
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
