"""Assembles frames from their chunks, in bounded memory.

The chunks of one frame are called a set.  A set that announces a frame above the limit, or more bytes than fit beside
the other sets, is refused before any of it is stored.  A frame is passed on only if it has the announced digest.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.transport.base import Place
from edge_sdk.transport.chunks import packets
from edge_sdk.transport.chunks.packets import Chunk, ChunkLayout, ChunkRange

FIRST_REQUEST_S = 1.0
"""Seconds without a new chunk after which the missing chunks are requested; doubled each time, up to a minute."""
_LONGEST_REQUEST_S = 60.0
GIVE_UP_S = 600.0
"""Seconds without a new chunk after which a set is dropped."""
EVICT_AFTER_S = 10.0
"""Seconds without a new chunk after which a set is dropped if a newer set of its rank needs its room."""
MAX_SETS = 4096
"""The maximum number of incomplete sets."""
_LEAST_REQUEST_GAP_S = 0.25
"""The minimum time between two requests for one set in answer to repeated chunks."""
_CHECK_INTERVAL_S = 0.1
_REQUESTS_PER_CHECK = 64
"""The maximum number of requests at a time, because requests for thousands of sets must not delay other frames."""
IGNORE_COMPLETE_S = 30.0
"""Seconds for which chunks of a completed set are ignored, because its sender has not received the answer yet."""


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """The chunks to request from the sender of a topic."""

    topic: str
    layout: ChunkLayout
    ranges: tuple[ChunkRange, ...]


@dataclass
class _Partial:
    """An incomplete frame."""

    layout: ChunkLayout
    seen: bytearray  # one byte for each chunk: 1 if it is here
    left: int  # number of missing chunks
    last_chunk_s: float
    last_request_s: float
    request_after_s: float = FIRST_REQUEST_S
    buffer: io.BytesIO = field(default_factory=io.BytesIO)  # its getvalue() returns the bytes without a copy

    def write(self, chunk: Chunk) -> None:
        self.buffer.seek(chunk.index * self.layout.chunk_bytes)
        self.buffer.write(chunk.body)
        self.seen[chunk.index] = 1
        self.left -= 1

    def contradicts(self, chunk: Chunk) -> bool:
        """Whether different bytes arrived for this chunk before."""
        begin, end = self.layout.byte_range(chunk.index)
        with self.buffer.getbuffer() as held:
            return held[begin:end] != chunk.body

    def missing(self) -> tuple[ChunkRange, ...]:
        return tuple(_missing_ranges(self.seen))


def _missing_ranges(seen: bytearray) -> Iterator[ChunkRange]:
    at = seen.find(0)
    while at >= 0:
        end = seen.find(1, at)
        yield at, (end if end >= 0 else len(seen)) - 1
        at = seen.find(0, end) if end >= 0 else -1


class Reassembly:
    """The incomplete sets, at most one for each topic: a newer set on a topic replaces the older one."""

    def __init__(self, frame_bytes: int, total_bytes: int) -> None:
        """total_bytes: the maximum that all incomplete sets together may announce."""
        self.frame_bytes = frame_bytes
        """The longest frame that a set may announce, in bytes."""
        self._total_bytes = total_bytes
        self.place_of: Callable[[str], Place] = lambda _topic: Place(self.frame_bytes, 0)
        """The room for a frame on a topic."""
        self._sets: dict[str, _Partial] = {}  # by topic; the one without a new chunk for the longest time is first
        self._complete: dict[str, tuple[ChunkLayout, float]] = {}  # by topic: the last complete set, and when
        self._given_up: list[tuple[str, str]] = []  # topic and reason of the sets dropped since `expired` was called
        self._last_check_s = -_CHECK_INTERVAL_S
        self.announced_bytes = 0
        """The bytes that all incomplete sets announce, an upper bound of their memory."""

    def take(self, topic: str, chunk: Chunk, now_s: float) -> bytes | MissingChunks | None:
        """Store a chunk.

        Returns the frame if this was its last chunk, MissingChunks if the chunk was here already, otherwise None.
        Raises RemoteProtocolError, and drops the set, if chunks contradict each other or the digest; raises it, and
        stores nothing, if the set is larger than the limits allow.
        """
        partial = self._sets.get(topic)
        if self._completed_lately(topic, chunk.layout, now_s):
            return None
        if partial is None or partial.layout != chunk.layout:
            partial = self._begin(topic, chunk.layout, now_s)
        elif partial.seen[chunk.index]:
            return self._take_duplicate(topic, partial, chunk, now_s)
        partial.write(chunk)
        partial.last_chunk_s, partial.request_after_s = now_s, FIRST_REQUEST_S
        self._sets[topic] = self._sets.pop(topic)  # to the end
        return self._completed(topic, partial, now_s) if partial.left == 0 else None

    def stalled(self, now_s: float) -> tuple[MissingChunks, ...]:
        """Return requests for sets without a new chunk for a while."""
        if now_s - self._last_check_s < _CHECK_INTERVAL_S:
            return ()
        self._last_check_s, late = now_s, list[MissingChunks]()
        self._complete = {topic: each for topic, each in self._complete.items() if now_s - each[1] < IGNORE_COMPLETE_S}
        for topic, partial in self._sets.items():
            if (
                len(late) < _REQUESTS_PER_CHECK
                and now_s - max(partial.last_chunk_s, partial.last_request_s) >= partial.request_after_s
            ):
                late.append(self._request_missing(topic, partial, now_s))
                partial.request_after_s = min(2 * partial.request_after_s, _LONGEST_REQUEST_S)
        return tuple(late)

    def expired(self, now_s: float) -> tuple[tuple[str, str], ...]:
        """Drop sets that were given up; returns the topic and the reason of each set dropped since the last call."""
        while self._sets and now_s - next(iter(self._sets.values())).last_chunk_s >= GIVE_UP_S:
            self._give_up(next(iter(self._sets)), f"after {GIVE_UP_S:g} s")
        given_up, self._given_up = tuple(self._given_up), []
        return given_up

    def _begin(self, topic: str, layout: ChunkLayout, now_s: float) -> _Partial:
        place = self.place_of(topic)
        most_bytes = min(place.most_bytes, self.frame_bytes)
        if layout.total_bytes > most_bytes:
            raise RemoteProtocolError(
                "limit", f"chunks of a frame of {layout.total_bytes} bytes, at most {most_bytes} are legal here"
            )
        older = self._sets.get(topic)
        if older is not None and older.layout.set_id == layout.set_id:  # the same frame in chunks of another length
            self._drop(topic)
        elif older is not None:
            self._give_up(topic, "when a newer one came")
        while not self._has_room(layout):
            victim = self._victim(place.rank, now_s)
            if victim is None:
                raise RemoteProtocolError(
                    "busy", f"no room for a frame of {layout.total_bytes} bytes beside the others that are on their way"
                )
            self._give_up(victim, "when another needed its room")
        self._sets[topic] = partial = _Partial(layout, bytearray(layout.count), layout.count, now_s, now_s)
        self.announced_bytes += layout.total_bytes
        return partial

    def _has_room(self, layout: ChunkLayout) -> bool:
        return len(self._sets) < MAX_SETS and self.announced_bytes + layout.total_bytes <= self._total_bytes

    def _victim(self, rank: int, now_s: float) -> str | None:
        """Return the topic of the set to drop for one of this rank, or None if all stay.

        It is a set of the lowest rank below, or else one of the same rank without a new chunk for a while; among
        several, the one without a new chunk for the longest time.
        """
        ranks = {topic: self.place_of(topic).rank for topic in self._sets}
        lowest = min(ranks.values(), default=rank)
        if lowest > rank:
            return None
        victim = next((topic for topic, its in ranks.items() if its == lowest), None)
        silent = victim is not None and now_s - self._sets[victim].last_chunk_s >= EVICT_AFTER_S
        return victim if lowest < rank or silent else None

    def _drop(self, topic: str) -> _Partial:
        partial = self._sets.pop(topic)
        self.announced_bytes -= partial.layout.total_bytes
        return partial

    def _give_up(self, topic: str, when: str) -> None:
        partial = self._drop(topic)
        missing = f"{partial.left} missing {when}"
        self._given_up.append((topic, f"a chunk set of {partial.layout.count} was never completed: {missing}"))

    def _take_duplicate(self, topic: str, partial: _Partial, chunk: Chunk, now_s: float) -> MissingChunks | None:
        """Handle a repeated chunk: its sender has restarted, and needs the list of missing chunks."""
        if partial.contradicts(chunk):
            self._drop(topic)
            raise RemoteProtocolError("chunk", f"two chunks {chunk.index} of one set differ: the set was dropped")
        return (
            self._request_missing(topic, partial, now_s)
            if now_s - partial.last_request_s >= _LEAST_REQUEST_GAP_S
            else None
        )

    def _request_missing(self, topic: str, partial: _Partial, now_s: float) -> MissingChunks:
        partial.last_request_s = now_s
        return MissingChunks(topic, partial.layout, partial.missing())

    def _completed_lately(self, topic: str, layout: ChunkLayout, now_s: float) -> bool:
        whole, since_s = self._complete.get(topic, (None, 0.0))
        return whole == layout and now_s - since_s < IGNORE_COMPLETE_S

    def _completed(self, topic: str, partial: _Partial, now_s: float) -> bytes:
        self._drop(topic)
        frame = partial.buffer.getvalue()
        if packets.set_id(frame) != partial.layout.set_id:
            raise RemoteProtocolError("chunk", "a chunk set does not have the digest that it announced: it was dropped")
        self._complete[topic] = partial.layout, now_s
        return frame
