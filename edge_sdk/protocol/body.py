"""The msgpack body of a frame, with long byte strings neither copied into it nor out of it.

The weights of a large model are nearly all of their frame.  The library would hold them two or three times on the way
to the frame and once more on the way back, which a small board does not have room for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.crc import crc32

LONG_BYTES = 2**20
"""Longer byte strings are not copied out of a body; every Blob is shorter."""

_COPIED_BELOW_BYTES = 2**16
"""Shorter arrays are copied into the body: that is quicker than to join it of more parts.  Longer ones have a length of
4 bytes before them."""

Span: TypeAlias = tuple[int, int, int]
"""Of a long byte string in a body: where its value begins, where its bytes begin, where they end."""

BodyPart: TypeAlias = bytes | memoryview
Piece: TypeAlias = "bytes | memoryview | PackedField"

_BIN_32 = b"\xc6"
_PLACEHOLDER = 0


def raw(array: NDArray[Any]) -> bytes | NDArray[np.uint8]:
    """The bytes of an array, in C order; where they are many a view of them, for `pack`."""
    if array.nbytes < _COPIED_BELOW_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class PackedField:
    """A value that is packed already: it stands in a plain value like any other, and goes out as it is."""

    parts: tuple[BodyPart, ...]
    size_bytes: int
    crc: int
    """crc32 of the parts in a row."""


def ready(plain: Any) -> PackedField:
    """A plain value, packed to stand in many bodies."""
    parts = tuple(flat(pack(plain)))
    return PackedField(parts, sum(map(len, parts)), functools.reduce(lambda crc, part: crc32(part, crc), parts, 0))


def pack(plain: Any) -> list[Piece]:
    """A body in pieces: what is Ready, and arrays of u1, which are long byte strings, are pieces by themselves."""
    apart: list[NDArray[np.uint8] | PackedField] = []
    whole = cast("bytes", msgpack.Packer(default=apart.append).pack(plain))  # what is apart is noted, nil in its place
    return _Writer().put(plain).pieces() if apart else [whole]


def flat(pieces: Iterable[Piece]) -> Iterator[BodyPart]:
    """The parts that pieces have, to be joined."""
    for piece in pieces:
        if isinstance(piece, PackedField):
            yield from piece.parts
        else:
            yield piece


def unpack(body: memoryview, spans: list[Span], pairs: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """What stands in a body whose long byte strings are at `spans`: those come as memoryviews of it."""
    if not spans:
        return msgpack.unpackb(body, raw=False, strict_map_key=False, object_pairs_hook=pairs)

    def long(_code: int, number: bytes) -> memoryview:
        _, begin, end = spans[int.from_bytes(number, "big")]
        return body[begin:end]

    short = b"".join(_without(body, spans))
    return msgpack.unpackb(short, raw=False, strict_map_key=False, object_pairs_hook=pairs, ext_hook=long)


class _Writer:
    """Packs a value bit by bit, in runs as long as what lies between two values that stand apart."""

    def __init__(self) -> None:
        self._run = msgpack.Packer(autoreset=False)
        self._pieces: list[Piece] = []

    def pieces(self) -> list[Piece]:
        """All that was put."""
        return [*self._pieces, cast("bytes", self._run.bytes())]

    def put(self, value: Any) -> _Writer:
        """One value behind the others."""
        if isinstance(value, dict):
            self._run.pack_map_header(len(value))
            for key, each in value.items():
                self._run.pack(key)
                self.put(each)
        elif isinstance(value, list):
            self._run.pack_array_header(len(value))
            for each in value:
                self.put(each)
        elif isinstance(value, PackedField):
            self._apart(b"", value)
        elif isinstance(value, np.ndarray):
            self._apart(_BIN_32 + value.nbytes.to_bytes(4, "big"), value.data)
        else:
            self._run.pack(value)
        return self

    def _apart(self, lead: bytes, piece: Piece) -> None:
        self._pieces += (self._run.bytes() + lead, piece)
        self._run.reset()


def _without(body: memoryview, spans: list[Span]) -> Iterator[bytes | memoryview]:
    """The body with a numbered placeholder for each long byte string."""
    at = 0
    for number, (value_at, _, end) in enumerate(spans):
        yield body[at:value_at]
        yield cast("bytes", msgpack.packb(msgpack.ExtType(_PLACEHOLDER, number.to_bytes(2, "big"))))
        at = end
    yield body[at:]
