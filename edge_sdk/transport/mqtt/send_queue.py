"""What waits to be sent over one link, and in which order it goes.

Short frames go first and whole.  Longer ones go in chunks, in turn, only a few of which are ever with the broker: so a
large upload neither delays a receipt nor fills the memory of anybody.  A frame that was cut off goes on where it was,
and one that was sent stays at hand for a while, for its receiver may miss some of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_sdk.transport.chunks import packets
from edge_sdk.transport.chunks.packets import CHUNK_BYTES, MIN_CHUNK_BYTES, ChunkLayout, ChunkRequest
from edge_sdk.transport.mqtt.pace import Pace

MAX_IN_FLIGHT = 8
"""Messages that the broker has not acknowledged, chunks included."""
MAX_CHUNKS_IN_FLIGHT = 4
MAX_SHORT = 32768
MAX_SHORT_BYTES = 256 * 1024 * 1024
MAX_LONG_BYTES = 1024 * 1024 * 1024
KEEP_BYTES = 256 * 1024 * 1024
"""Sent frames that are kept for receivers that miss some of their chunks."""
KEEP_S = 120.0


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """One MQTT message to send."""

    topic: str
    payload: bytes
    retain: bool = False
    chunk: tuple[ChunkLayout, int] | None = None

    @property
    def size_bytes(self) -> int:
        """Length of the payload."""
        return len(self.payload)


@dataclass
class _Parcel:
    """A long frame on its way, or just sent."""

    frame: bytes
    shape: ChunkLayout
    pending: deque[int]
    in_flight: set[int] = field(default_factory=set)
    touched_s: float = 0.0

    @property
    def done(self) -> bool:
        return not self.pending and not self.in_flight

    def cut_off(self) -> None:
        """Nobody knows what became of the chunks in flight: send them again."""
        self.pending.extendleft(sorted(self.in_flight, reverse=True))
        self.in_flight.clear()


class SendQueue:
    """Fed from any thread, emptied by the one that drives the link.

    At most one long frame waits for each topic: a newer one takes the place of the one before.
    """

    def __init__(self, pace: Pace | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.chunk_bytes = CHUNK_BYTES
        self._pace = pace or Pace()
        self._clock = clock
        self._lock = threading.Condition()
        self._short: deque[QueuedMessage] = deque()
        self._short_bytes = 0
        self._parcels: dict[str, _Parcel] = {}
        self._turns: deque[str] = deque()  # topics of parcels that may send, each at most once
        self._in_flight: dict[int, QueuedMessage] = {}
        self._open = False

    def put(self, topic: str, frame: bytes, *, retain: bool = False) -> bool:
        """Queue a frame; False where too much waits already.  Without a link it is dropped without a word."""
        with self._lock:
            if not self._open:
                return True
            if len(frame) > self.chunk_bytes and not retain:
                return self._put_long(topic, frame)
            fits = len(self._short) < MAX_SHORT and self._short_bytes + len(frame) <= MAX_SHORT_BYTES
            if fits:
                self._short.append(QueuedMessage(topic, frame, retain))
                self._short_bytes += len(frame)
            return fits

    def wanted(self, want: ChunkRequest) -> None:
        """The receiver misses these chunks and no others; what is no longer here is left to whoever sent it."""
        with self._lock:
            for topic, parcel in self._parcels.items():
                if parcel.shape == want.shape:
                    missing = (index for first, last in want.ranges for index in range(first, last + 1))
                    parcel.pending = deque(index for index in missing if index not in parcel.in_flight)
                    self._take_turns(topic)
                    return

    def next(self) -> QueuedMessage | None:
        """What to hand to the broker now; call `handed` with it."""
        with self._lock:
            now_s = self._clock()
            if len(self._in_flight) >= MAX_IN_FLIGHT or self._pace.wait_s(now_s) > 0.0:
                return None
            item = self._next_short() or self._next_chunk(now_s)
            if item is not None:
                self._pace.spend(item.size_bytes)
            return item

    def handed(self, packet_id: int, item: QueuedMessage) -> None:
        """Remember a message that the broker has not acknowledged."""
        with self._lock:
            self._in_flight[packet_id] = item

    def acknowledged(self, packet_id: int) -> QueuedMessage | None:
        """The broker has it; None where nobody knows of it."""
        with self._lock:
            item = self._in_flight.pop(packet_id, None)
            if item is not None and item.chunk is not None:
                self._landed(item.topic, *item.chunk)
            if self._idle():
                self._lock.notify_all()
            return item

    def oldest(self) -> QueuedMessage | None:
        """The message that the broker should have acknowledged next."""
        with self._lock:
            return next(iter(self._in_flight.values()), None)

    def next_in_s(self) -> float | None:
        """Seconds until the pace allows what waits; None where nothing does."""
        with self._lock:
            return self._pace.wait_s(self._clock()) if self._short or self._turns else None

    def link_up(self, packet_bytes: int | None) -> None:
        """Frames may be sent, in messages of at most `packet_bytes`; None: the broker states no limit."""
        with self._lock:
            self._open = True
            if packet_bytes is not None:
                self.chunk_bytes = min(self.chunk_bytes, packet_bytes)

    def link_lost(self) -> None:
        """What is short is lost.  What is long rests until it is put again, and then goes on from where it was."""
        with self._lock:
            self._open = False
            self._short.clear()
            self._short_bytes = 0
            self._in_flight.clear()
            self._turns.clear()
            for parcel in self._parcels.values():
                parcel.cut_off()
            self._lock.notify_all()

    def shrink(self, below_bytes: int) -> bool:
        """Cut smaller than a message on which the broker hung up; False where chunks cannot be that small."""
        if below_bytes <= MIN_CHUNK_BYTES + packets.HEADER_BYTES:
            return False
        with self._lock:
            while self.chunk_bytes + packets.HEADER_BYTES >= below_bytes:
                self.chunk_bytes = max(self.chunk_bytes // 2, MIN_CHUNK_BYTES)
        return True

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no short frame is left unacknowledged, at most `timeout_s`, and not for a link that is gone."""
        with self._lock:
            self._lock.wait_for(lambda: self._idle() or not self._open, timeout_s)

    def _idle(self) -> bool:
        return not self._short and all(item.chunk is not None for item in self._in_flight.values())

    def _put_long(self, topic: str, frame: bytes) -> bool:
        parcel = self._parcels.get(topic)
        if parcel is None or parcel.frame != frame or parcel.shape.chunk_bytes != self.chunk_bytes:
            others_bytes = sum(len(other.frame) for key, other in self._parcels.items() if key != topic)
            if others_bytes + len(frame) > MAX_LONG_BYTES:
                return False
            shape = ChunkLayout(packets.set_id(frame), len(frame), self.chunk_bytes)
            self._parcels[topic] = parcel = _Parcel(frame, shape, deque(range(shape.count)))
        elif parcel.done:  # its receiver answers a chunk that it knows with what it misses
            parcel.pending.append(0)
        self._take_turns(topic)
        return True

    def _take_turns(self, topic: str) -> None:
        if self._parcels[topic].pending and topic not in self._turns:
            self._turns.append(topic)

    def _next_short(self) -> QueuedMessage | None:
        if not self._short:
            return None
        item = self._short.popleft()
        self._short_bytes -= item.size_bytes
        return item

    def _next_chunk(self, now_s: float) -> QueuedMessage | None:
        under_way = sum(item.chunk is not None for item in self._in_flight.values())
        if not self._turns or under_way >= MAX_CHUNKS_IN_FLIGHT:
            return None
        topic = self._turns.popleft()
        parcel = self._parcels[topic]
        index = parcel.pending.popleft()
        parcel.in_flight.add(index)
        parcel.touched_s = now_s
        self._take_turns(topic)
        return QueuedMessage(topic, packets.pack_chunk(parcel.shape, index, parcel.frame), chunk=(parcel.shape, index))

    def _landed(self, topic: str, shape: ChunkLayout, index: int) -> None:
        parcel = self._parcels.get(topic)
        if parcel is None or parcel.shape != shape:
            return
        parcel.in_flight.discard(index)
        if parcel.done:
            self._forget_old()

    def _forget_old(self) -> None:
        """Let go of frames that were sent: all after a while, the oldest sooner where they are many."""
        done = sorted((parcel.touched_s, topic) for topic, parcel in self._parcels.items() if parcel.done)
        held_bytes = sum(len(self._parcels[topic].frame) for _, topic in done)
        for touched_s, topic in done:
            if self._clock() - touched_s > KEEP_S or held_bytes > KEEP_BYTES:
                held_bytes -= len(self._parcels.pop(topic).frame)
