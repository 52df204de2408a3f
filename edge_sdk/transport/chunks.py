"""Frames that are too long for one MQTT message, in packets: chunks, requests for missing ones, and their assembly.

A request for missing chunks is called a want on the wire.  Both kinds of packet have the same header:

    offset  bytes  field
    0       4      magic "EDGC"
    4       1      version of the packet layout (1)
    5       1      kind: 1 a chunk, 2 a want
    6       2      reserved, zero
    8       4      crc32 of everything behind this field
    12      16     set: the first half of the SHA-256 digest of the whole frame
    28      4      length of the whole frame in bytes
    32      4      length of each chunk but the last in bytes
    36      4      chunk: its index; want: the number of ranges
    40      ..     chunk: its bytes; want: the ranges, each as first and last missing index

All integers are little-endian.  `topics.chunk_request_topic` gives the topic that a want is published on.

The chunks of one frame are called a set.  A set that announces a frame above the limit, or more bytes than fit beside
the other sets, is refused before any of it is stored.  A frame is passed on only if it has the announced digest.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.crc import crc32
from edge_sdk.transport.base import Place

MAGIC = b"EDGC"
VERSION = 1
HEADER = struct.Struct("<4sBBHI16sIII")
HEADER_BYTES = HEADER.size
CHUNK_BYTES = 64 * 1024
"""The usual length of a chunk: every broker known to us accepts it, and few accept more than twice as much."""
MIN_CHUNK_BYTES = 16 * 1024
MAX_RANGES = 1024
"""The maximum number of ranges in one request; the next request names further missing chunks."""

_CHUNK, _REQUEST = 1, 2
_CRC_AT, _CRC_END = 8, 12
_RANGE = struct.Struct("<II")

ChunkRange = tuple[int, int]
"""First and last index, both included."""


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Identifies a frame, and describes how it is split into chunks."""

    set_id: bytes
    """The 16 bytes of `set_id` below."""
    total_bytes: int
    """Length of the frame."""
    chunk_bytes: int
    """Length of each chunk but the last."""

    @property
    def count(self) -> int:
        """The number of chunks."""
        return -(-self.total_bytes // self.chunk_bytes)

    def byte_range(self, index: int) -> tuple[int, int]:
        """Return the begin and end of chunk `index` in the frame."""
        begin = index * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a frame."""

    layout: ChunkLayout
    index: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A request for the missing chunks of a frame."""

    layout: ChunkLayout
    ranges: tuple[ChunkRange, ...]


def is_packet(payload: bytes) -> bool:
    """Whether an MQTT payload is a packet of a long frame; otherwise it is a whole frame."""
    return payload.startswith(MAGIC)


def set_id(frame: bytes) -> bytes:
    """Return the 16 bytes that identify a frame in its chunks: the first half of its SHA-256 digest."""
    return hashlib.sha256(frame).digest()[:16]


def pack_chunk(layout: ChunkLayout, index: int, frame: bytes) -> bytes:
    """Return chunk `index` of a frame as a packet."""
    begin, end = layout.byte_range(index)
    return _pack(_CHUNK, layout, index, memoryview(frame)[begin:end])


def pack_request(layout: ChunkLayout, ranges: Sequence[ChunkRange]) -> bytes:
    """Return a packet that requests missing chunks: the first MAX_RANGES of these ranges."""
    named = ranges[:MAX_RANGES]
    return _pack(_REQUEST, layout, len(named), memoryview(b"".join(_RANGE.pack(*each) for each in named)))


def unpack_packet(payload: bytes) -> Chunk | ChunkRequest:
    """Read a packet.  Raises RemoteProtocolError for a payload that breaks the layout above."""
    if len(payload) < HEADER_BYTES:
        raise RemoteProtocolError("chunk", f"packet of {len(payload)} bytes, its header alone has {HEADER_BYTES}")
    _, version, kind, reserved, crc, name, total_bytes, chunk_bytes, number = HEADER.unpack_from(payload)
    if version != VERSION or reserved or kind not in (_CHUNK, _REQUEST):
        raise RemoteProtocolError("version", "a packet of a later version: upgrade this side")
    if crc != crc32(memoryview(payload)[_CRC_END:]):
        raise RemoteProtocolError("checksum", "checksum does not match: the chunk was damaged on its way")
    layout = ChunkLayout(name, total_bytes, chunk_bytes)
    if chunk_bytes < MIN_CHUNK_BYTES or total_bytes <= chunk_bytes:
        raise RemoteProtocolError("chunk", f"{total_bytes} bytes in chunks of {chunk_bytes} are not a chunk set")
    body = memoryview(payload)[HEADER_BYTES:]
    return _chunk(layout, number, body) if kind == _CHUNK else _request(layout, number, body)


def _pack(kind: int, layout: ChunkLayout, number: int, body: memoryview) -> bytes:
    fields = (layout.set_id, layout.total_bytes, layout.chunk_bytes, number)
    header = HEADER.pack(MAGIC, VERSION, kind, 0, 0, *fields)
    crc = crc32(body, crc32(header[_CRC_END:]))
    return b"".join((header[:_CRC_AT], crc.to_bytes(4, "little"), header[_CRC_END:], body))


def _chunk(layout: ChunkLayout, index: int, body: memoryview) -> Chunk:
    if index >= layout.count:
        raise RemoteProtocolError("chunk", f"chunk {index} of a set of {layout.count}")
    begin, end = layout.byte_range(index)
    if len(body) != end - begin:
        raise RemoteProtocolError("chunk", f"chunk {index} has {len(body)} bytes, expected {end - begin}")
    return Chunk(layout, index, body)


def _request(layout: ChunkLayout, count: int, body: memoryview) -> ChunkRequest:
    if count > MAX_RANGES or len(body) != count * _RANGE.size:
        raise RemoteProtocolError("chunk", f"a want of {count} ranges in {len(body)} bytes")
    ranges = tuple(_RANGE.iter_unpack(body))
    before = -1
    for first, last in ranges:
        if not before < first <= last < layout.count:  # each chunk once, so that a short request cannot ask for more
            raise RemoteProtocolError("chunk", f"a want beyond the {layout.count} chunks of its set, or not ascending")
        before = last
    return ChunkRequest(layout, ranges)


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

        It is a set of the lowest rank below, or else one of the same rank without a new chunk for some time.  If there
        are several, it is the one without a new chunk for the longest time.
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
        if set_id(frame) != partial.layout.set_id:
            raise RemoteProtocolError("chunk", "a chunk set does not match its digest: it was dropped")
        self._complete[topic] = partial.layout, now_s
        return frame
