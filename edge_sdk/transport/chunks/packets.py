"""The packets of a frame that is too long for one MQTT message: its chunks, and requests for missing ones.

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
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.crc import crc32

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
        raise RemoteProtocolError("chunk", f"chunk {index} has {len(body)} bytes, its set leaves it {end - begin}")
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
