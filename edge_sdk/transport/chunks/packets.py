"""How a frame that is too long for one MQTT message travels: in chunks, and with words about those that are missing.

Both kinds of packet have one header:

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

All integers little-endian.  A want goes to the sender's side of the same device: see `topics.answering`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.crc import crc32

MAGIC = b"EDGC"
VERSION = 1
HEADER = struct.Struct("<4sBBHI16sIII")
HEADER_BYTES = HEADER.size
CHUNK_BYTES = 64 * 1024
"""The usual chunk: every broker we know of takes it, most take no more than twice as much."""
MIN_CHUNK_BYTES = 16 * 1024
MAX_RANGES = 1024
"""Named in one want; what is missing beyond them is named in the next."""

_CHUNK, _WANT = 1, 2
_CRC_AT, _CRC_END = 8, 12
_RANGE = struct.Struct("<II")

Range = tuple[int, int]
"""First and last index, both included."""


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Which frame, and how it is cut."""

    set_id: bytes
    total_bytes: int
    chunk_bytes: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.total_bytes // self.chunk_bytes)

    def span(self, index: int) -> tuple[int, int]:
        """Where a chunk begins and ends in the frame."""
        begin = index * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a frame."""

    shape: ChunkLayout
    index: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """What is missing of a frame."""

    shape: ChunkLayout
    ranges: tuple[Range, ...]


def is_packet(payload: bytes) -> bool:
    """Whether an MQTT payload is one of these rather than a whole frame."""
    return payload.startswith(MAGIC)


def set_id(frame: bytes) -> bytes:
    """The name of a frame among chunks, 16 bytes."""
    return hashlib.sha256(frame).digest()[:16]


def pack_chunk(shape: ChunkLayout, index: int, frame: bytes) -> bytes:
    """One chunk of `frame` as a packet."""
    begin, end = shape.span(index)
    return _pack(_CHUNK, shape, index, memoryview(frame)[begin:end])


def pack_want(shape: ChunkLayout, ranges: Sequence[Range]) -> bytes:
    """The packet that names missing chunks, the first MAX_RANGES ranges of them."""
    named = ranges[:MAX_RANGES]
    return _pack(_WANT, shape, len(named), memoryview(b"".join(_RANGE.pack(*each) for each in named)))


def unpack(payload: bytes) -> Chunk | ChunkRequest:
    """The packet in a payload.  Raises RemoteProtocolError for anything that breaks the layout above."""
    if len(payload) < HEADER_BYTES:
        raise RemoteProtocolError("chunk", f"packet of {len(payload)} bytes, its header alone has {HEADER_BYTES}")
    _, version, kind, reserved, crc, name, total_bytes, chunk_bytes, number = HEADER.unpack_from(payload)
    if version != VERSION or reserved or kind not in (_CHUNK, _WANT):
        raise RemoteProtocolError("version", "a packet of a later version: upgrade this side")
    if crc != crc32(memoryview(payload)[_CRC_END:]):
        raise RemoteProtocolError("checksum", "checksum does not match: the chunk was damaged on its way")
    shape = ChunkLayout(name, total_bytes, chunk_bytes)
    if chunk_bytes < MIN_CHUNK_BYTES or total_bytes <= chunk_bytes:
        raise RemoteProtocolError("chunk", f"{total_bytes} bytes in chunks of {chunk_bytes} are no chunk set")
    body = memoryview(payload)[HEADER_BYTES:]
    return _chunk(shape, number, body) if kind == _CHUNK else _want(shape, number, body)


def _pack(kind: int, shape: ChunkLayout, number: int, body: memoryview) -> bytes:
    fields = (shape.set_id, shape.total_bytes, shape.chunk_bytes, number)
    header = HEADER.pack(MAGIC, VERSION, kind, 0, 0, *fields)
    crc = crc32(body, crc32(header[_CRC_END:]))
    return b"".join((header[:_CRC_AT], crc.to_bytes(4, "little"), header[_CRC_END:], body))


def _chunk(shape: ChunkLayout, index: int, body: memoryview) -> Chunk:
    if index >= shape.count:
        raise RemoteProtocolError("chunk", f"chunk {index} of a set of {shape.count}")
    begin, end = shape.span(index)
    if len(body) != end - begin:
        raise RemoteProtocolError("chunk", f"chunk {index} has {len(body)} bytes, its set leaves it {end - begin}")
    return Chunk(shape, index, body)


def _want(shape: ChunkLayout, count: int, body: memoryview) -> ChunkRequest:
    if count > MAX_RANGES or len(body) != count * _RANGE.size:
        raise RemoteProtocolError("chunk", f"a want of {count} ranges in {len(body)} bytes")
    ranges = tuple(_RANGE.iter_unpack(body))
    before = -1
    for first, last in ranges:
        if not before < first <= last < shape.count:  # each chunk once: a want must not multiply what it asks for
            raise RemoteProtocolError("chunk", f"a want beyond the {shape.count} chunks of its set, or not ascending")
        before = last
    return ChunkRequest(shape, ranges)
