"""The msgpack body of a frame; long byte strings are not copied when it is packed and unpacked.

The weights of a large model are nearly all of their frame.  The msgpack library copies them two or three times when it
packs, and once when it unpacks, and a small board has no memory for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.crc import crc32

LONG_BYTES = 2**20
"""Longer byte strings are not copied when a body is unpacked; only tensors are that long."""

_COPIED_BELOW_BYTES = 2**16
"""Shorter arrays are copied when a body is packed, which is quicker than joining more parts.  The length of longer ones
takes 4 bytes in msgpack."""

Span: TypeAlias = tuple[int, int, int]
"""Offsets of a long byte string in a body: where its msgpack value begins, where its bytes begin, where they end."""

BodyPart: TypeAlias = bytes | memoryview
Piece: TypeAlias = "bytes | memoryview | PackedField"

_BIN_32 = b"\xc6"
_STAND_IN_BYTES = 1
"""The bytes of what msgpack packs in place of a separate value: None, which is what `default` returns."""
_PLACEHOLDER = 0


def array_bytes(array: NDArray[Any]) -> bytes | NDArray[np.uint8]:
    """Return the bytes of an array in C order, for `pack`; if the array is long, as a u1 view without a copy."""
    if array.nbytes < _COPIED_BELOW_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class PackedField:
    """A value that is packed already; `pack` accepts it inside a plain value, and puts its bytes in as they are."""

    packed: bytes
    crc: int
    """The crc32 of these bytes; that of a longer frame follows from it."""

    def __len__(self) -> int:
        return len(self.packed)


def packed_field(packed: bytes) -> PackedField:
    """Return a value that is packed already, with its checksum."""
    return PackedField(packed, crc32(packed))


def pack_value(plain: Any) -> PackedField:
    """Pack a plain value once, for use in many bodies."""
    return packed_field(b"".join(joined_parts(pack(plain))))


def packed_text(text: str) -> bytes:
    """Pack a text."""
    return cast("bytes", msgpack.Packer().pack(text))


def pack(plain: Any) -> list[Piece]:
    """Return a body in pieces; each PackedField, and each array of u1 (a long byte string), is a piece of its own."""
    separate: list[tuple[int, NDArray[np.uint8] | PackedField]] = []  # with where in the rest they belong
    packers: list[msgpack.Packer] = []

    def set_apart(value: NDArray[np.uint8] | PackedField) -> None:
        separate.append((len(packers[0].bytes()), value))

    packers.append(msgpack.Packer(default=set_apart, autoreset=False))
    packers[0].pack(plain)
    rest, done = cast("bytes", packers.pop().bytes()), 0  # in reach of its own default, its megabyte would stay a while
    pieces: list[Piece] = []
    for at, value in separate:
        if isinstance(value, PackedField):
            pieces += (rest[done:at], value)
        else:
            pieces += (rest[done:at] + _BIN_32 + value.nbytes.to_bytes(4, "big"), value.data)
        done = at + _STAND_IN_BYTES
    return [*pieces, rest[done:]]


def joined_parts(pieces: Iterable[Piece]) -> Iterator[BodyPart]:
    """Yield the bytes of all pieces, to be joined."""
    for piece in pieces:
        yield piece.packed if isinstance(piece, PackedField) else piece


def unpack(body: memoryview, spans: list[Span], pairs: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """Return the plain value of a body; the long byte strings at `spans` become memoryviews of the body.

    pairs: makes a dict of the key-value pairs of a map, and checks the keys.
    """
    if not spans:
        return unpack_short(body, pairs)

    def long(_code: int, number: bytes) -> memoryview:
        _, begin, end = spans[int.from_bytes(number, "big")]
        return body[begin:end]

    short = b"".join(_with_placeholders(body, spans))
    return msgpack.unpackb(short, raw=False, strict_map_key=False, object_pairs_hook=pairs, ext_hook=long)


def unpack_short(body: bytes | memoryview, pairs: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """Return the plain value of a body without long byte strings."""
    return msgpack.unpackb(body, raw=False, strict_map_key=False, object_pairs_hook=pairs)


def _with_placeholders(body: memoryview, spans: list[Span]) -> Iterator[bytes | memoryview]:
    """Yield the body with a numbered placeholder in place of each long byte string."""
    at = 0
    for number, (value_at, _, end) in enumerate(spans):
        yield body[at:value_at]
        yield cast("bytes", msgpack.packb(msgpack.ExtType(_PLACEHOLDER, number.to_bytes(2, "big"))))
        at = end
    yield body[at:]
