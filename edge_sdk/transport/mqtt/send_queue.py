"""The frames that wait to be sent over one MQTT connection, and the order in which they are sent.

Short frames are sent first, each in one message.  Longer ones are sent in chunks, topic by topic in turn, with only a
few unacknowledged chunks at any time, so that a large upload neither delays a receipt nor fills the broker's memory.
After a lost connection a long frame continues where it stopped.  A sent frame is kept for a while, because its receiver
may request missing chunks.

A pace limits the rate at which a client publishes: hosted brokers disconnect or charge clients that exceed theirs.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_sdk.transport import chunks
from edge_sdk.transport.chunks import MIN_CHUNK_BYTES, ChunkLayout, ChunkRequest
from edge_sdk.transport.mqtt.hidden_limits import KeptChunks

_LEAST_WAIT_S = 1e-6
"""Shorter waits are rounding errors, and count as none."""


class _TokenBucket:
    """A token bucket that holds the tokens of one second; one message may take more than are left."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = self._left = rate_per_s
        self._filled_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Seconds until the number of tokens reaches 0 again."""
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
    """The maximum messages and bytes per second, averaged over one second.  None sets no limit."""

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


MAX_IN_FLIGHT = 8
"""The maximum number of unacknowledged messages, including chunks.  A message with QoS 0 counts until it is written to
the socket, so that a slow link holds messages back in this queue."""
MAX_CHUNKS_IN_FLIGHT = 4
MAX_SHORT = 32768
MAX_SHORT_BYTES = 256 * 1024 * 1024
MAX_LONG_BYTES = 1024 * 1024 * 1024
MAX_SENT_BYTES = 256 * 1024 * 1024
"""The maximum bytes of sent long frames that are kept for receivers that miss chunks."""
MAX_SENT_AGE_S = 120.0
"""Seconds for which they are kept."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """One MQTT message to send."""

    topic: str
    payload: bytes
    retain: bool = False
    answered: bool = False
    """Whether the layer above sends it again until it is answered."""
    chunk: tuple[ChunkLayout, int] | None = None
    """For a chunk the layout of its frame, and its index."""

    @property
    def size_bytes(self) -> int:
        """Length of the payload in bytes."""
        return len(self.payload)


@dataclass
class _LongFrame:
    """A frame that is being sent in chunks, or was sent."""

    frame: bytes
    layout: ChunkLayout
    pending: deque[int]
    """Indices of the chunks to send."""
    in_flight: set[int] = field(default_factory=set)
    """Indices of the chunks that the broker has not acknowledged."""
    last_sent_s: float = 0.0

    @property
    def done(self) -> bool:
        return not self.pending and not self.in_flight

    def requeue_in_flight(self) -> None:
        """Send the unacknowledged chunks again, because the broker may lack them."""
        self.pending.extendleft(sorted(self.in_flight, reverse=True))
        self.in_flight.clear()


class SendQueue:
    """A queue that any thread may fill, and only the connection's thread empties.

    It holds at most one long frame for each topic: a newer one replaces an older one.
    """

    def __init__(
        self,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        kept: KeptChunks | None = None,
    ) -> None:
        self._kept = kept or KeptChunks(None, "")
        self.chunk_bytes = self._kept.chunk_bytes()
        self._pace = pace or Pace()
        self._clock = clock
        self._lock = threading.Condition()
        self._short: deque[QueuedMessage] = deque()
        self._short_bytes = 0
        self._long: dict[str, _LongFrame] = {}  # by topic
        self._turns: deque[str] = deque()  # topics that have chunks to send, each at most once, in turn
        self._in_flight: dict[int, QueuedMessage] = {}
        self._open = False

    def put(self, topic: str, frame: bytes, *, retain: bool = False, answered: bool = False) -> bool:
        """Queue a frame; returns False if the queue is full.  Without a connection the frame is silently dropped."""
        with self._lock:
            if not self._open:
                return True
            if len(frame) > self.chunk_bytes and not retain:
                return self._put_long(topic, frame)
            fits = len(self._short) < MAX_SHORT and self._short_bytes + len(frame) <= MAX_SHORT_BYTES
            if fits:
                self._short.append(QueuedMessage(topic, frame, retain, answered))
                self._short_bytes += len(frame)
            return fits

    def requeue_chunks(self, request: ChunkRequest) -> None:
        """Send only the chunks that a receiver misses.

        Does nothing if the frame is no longer kept; the layer above then sends the whole frame again.
        """
        with self._lock:
            for topic, long_frame in self._long.items():
                if long_frame.layout == request.layout:
                    missing = (index for first, last in request.ranges for index in range(first, last + 1))
                    long_frame.pending = deque(index for index in missing if index not in long_frame.in_flight)
                    self._schedule(topic)
                    return

    def next(self) -> QueuedMessage | None:
        """Return the message to send now, if there is one; call `note_sent` after it was sent."""
        with self._lock:
            if not self._short and not self._turns:
                return None
            now_s = self._clock()
            if len(self._in_flight) >= MAX_IN_FLIGHT or self._pace.wait_s(now_s) > 0.0:
                return None
            message = self._next_short() or self._next_chunk(now_s)
            if message is not None:
                self._pace.spend(message.size_bytes)
            return message

    def note_sent(self, packet_id: int, message: QueuedMessage) -> None:
        """Remember a message until the broker acknowledges it."""
        with self._lock:
            self._in_flight[packet_id] = message

    def note_acknowledged(self, packet_id: int) -> QueuedMessage | None:
        """Return the message that the broker has acknowledged, or None if the packet id is unknown."""
        with self._lock:
            message = self._in_flight.pop(packet_id, None)
            if message is not None and message.chunk is not None:
                self._chunk_acknowledged(message.topic, *message.chunk)
            if self._idle():
                self._lock.notify_all()
            return message

    def note_too_long(self, packet_id: int) -> tuple[QueuedMessage, bool] | None:
        """Take back a message that the broker refused for its length; resend its frame in smaller chunks if possible.

        Returns the message, and whether its frame is being resent; or None if an earlier message had the same effect.
        """
        with self._lock:
            message = self._in_flight.pop(packet_id, None)
            if message is None:
                return None
            long_frame = self._long.get(message.topic)
            if message.chunk is not None and (long_frame is None or long_frame.layout != message.chunk[0]):
                return None
            if message.retain or not self.shrink_chunks(message.size_bytes):
                self._drop_long(message)
                return message, False
            frame = message.payload if message.chunk is None or long_frame is None else long_frame.frame
            return message, self._put_long(message.topic, frame)

    def oldest_in_flight(self) -> QueuedMessage | None:
        """Return the oldest message that the broker has not acknowledged."""
        with self._lock:
            return next(iter(self._in_flight.values()), None)

    def next_in_s(self) -> float | None:
        """Seconds until the pace allows the next message, or None if none waits."""
        with self._lock:
            return self._pace.wait_s(self._clock()) if self._short or self._turns else None

    def link_up(self, packet_bytes: int | None) -> None:
        """Accept frames from now on; packet_bytes: the maximum length of chunks, or None if the broker states none."""
        with self._lock:
            self._open = True
            if packet_bytes is not None:
                self.chunk_bytes = min(self.chunk_bytes, packet_bytes)

    def link_lost(self) -> None:
        """Drop the short frames, and stop sending the long ones.

        A long frame that is queued again later continues where it stopped.
        """
        with self._lock:
            self._open = False
            self._short.clear()
            self._short_bytes = 0
            self._in_flight.clear()
            self._turns.clear()
            for long_frame in self._long.values():
                long_frame.requeue_in_flight()
            self._lock.notify_all()

    def shrink_chunks(self, below_bytes: int) -> bool:
        """Make chunk messages smaller than `below_bytes`; returns False if chunks cannot be that small."""
        if below_bytes <= MIN_CHUNK_BYTES + chunks.HEADER_BYTES:
            return False
        with self._lock:
            while self.chunk_bytes + chunks.HEADER_BYTES >= below_bytes:
                self.chunk_bytes = max(self.chunk_bytes // 2, MIN_CHUNK_BYTES)
            self._kept.keep(self.chunk_bytes)
        return True

    def message_bytes(self, frame_bytes: int) -> int:
        """Return the length of the messages that carry a frame."""
        return frame_bytes if frame_bytes <= self.chunk_bytes else self.chunk_bytes + chunks.HEADER_BYTES

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until every frame is acknowledged or the connection is lost, at most `timeout_s` seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._idle() or not self._open, timeout_s)

    def _idle(self) -> bool:
        return not (self._short or self._turns or self._in_flight)

    def _put_long(self, topic: str, frame: bytes) -> bool:
        long_frame = self._long.get(topic)
        if long_frame is None or long_frame.frame != frame or long_frame.layout.chunk_bytes != self.chunk_bytes:
            others_bytes = sum(len(other.frame) for key, other in self._long.items() if key != topic)
            if others_bytes + len(frame) > MAX_LONG_BYTES:
                return False
            layout = ChunkLayout(chunks.set_id(frame), len(frame), self.chunk_bytes)
            self._long[topic] = long_frame = _LongFrame(frame, layout, deque(range(layout.count)))
        elif long_frame.done:  # one chunk is enough, because the receiver then requests those that it misses
            long_frame.pending.append(0)
        self._schedule(topic)
        return True

    def _drop_long(self, message: QueuedMessage) -> None:
        """Stop sending the long frame of a chunk message."""
        if message.chunk is not None:
            del self._long[message.topic]
            if message.topic in self._turns:
                self._turns.remove(message.topic)

    def _schedule(self, topic: str) -> None:
        """Give a topic with chunks to send its turn."""
        if self._long[topic].pending and topic not in self._turns:
            self._turns.append(topic)

    def _next_short(self) -> QueuedMessage | None:
        if not self._short:
            return None
        message = self._short.popleft()
        self._short_bytes -= message.size_bytes
        return message

    def _next_chunk(self, now_s: float) -> QueuedMessage | None:
        in_flight = sum(message.chunk is not None for message in self._in_flight.values())
        if not self._turns or in_flight >= MAX_CHUNKS_IN_FLIGHT:
            return None
        topic = self._turns.popleft()
        long_frame = self._long[topic]
        index = long_frame.pending.popleft()
        long_frame.in_flight.add(index)
        long_frame.last_sent_s = now_s
        self._schedule(topic)
        payload = chunks.pack_chunk(long_frame.layout, index, long_frame.frame)
        return QueuedMessage(topic, payload, chunk=(long_frame.layout, index))

    def _chunk_acknowledged(self, topic: str, layout: ChunkLayout, index: int) -> None:
        long_frame = self._long.get(topic)
        if long_frame is None or long_frame.layout != layout:
            return
        long_frame.in_flight.discard(index)
        if long_frame.done:
            self._drop_old_frames()

    def _drop_old_frames(self) -> None:
        """Drop sent frames older than MAX_SENT_AGE_S, and the oldest beyond MAX_SENT_BYTES."""
        done = sorted((each.last_sent_s, topic) for topic, each in self._long.items() if each.done)
        kept_bytes = sum(len(self._long[topic].frame) for _, topic in done)
        for last_sent_s, topic in done:
            if self._clock() - last_sent_s > MAX_SENT_AGE_S or kept_bytes > MAX_SENT_BYTES:
                kept_bytes -= len(self._long.pop(topic).frame)
