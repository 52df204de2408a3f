"""The msgpack body of a frame, packed and unpacked without copying long byte strings.

A large model's weights are nearly all of their frame.  The msgpack library would copy them two or three times when it
packs, and once when it unpacks; a small board lacks the memory for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

LONG_BYTES = 2**20
"""Longer byte strings are not copied when a body is unpacked; only tensors are that long."""

_COPIED_BELOW_BYTES = 2**16
"""Shorter arrays are copied when a body is packed, which is faster than joining more parts.  From this size on msgpack
stores the length in 4 bytes (bin 32)."""

Span: TypeAlias = tuple[int, int, int]
"""Offsets of a long byte string in a body: begin of its msgpack value, begin of its bytes, end."""

BodyPart: TypeAlias = bytes | memoryview
Piece: TypeAlias = "bytes | memoryview | PackedField"

_BIN_32 = b"\xc6"
_STAND_IN_BYTES = 1
"""The length of the nil that msgpack packs in place of a separate value, because `default` returns None."""
_PLACEHOLDER = 0
_SHORT_TEXT, _SHORT_TEXT_BYTES = 0xA0, 32
"""The first byte of a text that is shorter than the second number, of which the low bits are its length."""


def array_bytes(array: NDArray[Any]) -> bytes | NDArray[np.uint8]:
    """Return the bytes of an array in C order, for `pack`; a long array as a u1 view without a copy."""
    if array.nbytes < _COPIED_BELOW_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class PackedField:
    """An already packed value; `pack` accepts it inside a plain value, and inserts its bytes unchanged."""

    packed: bytes

    def __len__(self) -> int:
        return len(self.packed)


def pack_value(plain: Any) -> PackedField:
    """Pack a plain value once, for use in many bodies."""
    return PackedField(b"".join(joined_parts(pack(plain))))


def packed_text(text: str) -> bytes:
    """Pack a text."""
    raw = text.encode()
    if len(raw) < _SHORT_TEXT_BYTES:
        return bytes((_SHORT_TEXT | len(raw),)) + raw
    return cast("bytes", msgpack.packb(text))


def packed_short(plain: Any) -> bytes:
    """Pack a plain value that has no PackedField and no array in it."""
    return cast("bytes", msgpack.packb(plain))


def pack(plain: Any) -> list[Piece]:
    """Return a body in pieces; each PackedField, and each array of u1 (a long byte string), is a separate piece."""
    separate: list[tuple[int, NDArray[np.uint8] | PackedField]] = []  # (offset in the rest, value)
    packers: list[msgpack.Packer] = []

    def set_apart(value: NDArray[np.uint8] | PackedField) -> None:
        separate.append((len(packers[0].bytes()), value))

    packers.append(msgpack.Packer(default=set_apart, autoreset=False))
    packers[0].pack(plain)
    # pop: through `set_apart` the packer would be in a reference cycle that keeps its megabyte alive for a while
    rest, done = cast("bytes", packers.pop().bytes()), 0
    pieces: list[Piece] = []
    for at, value in separate:
        if isinstance(value, PackedField):
            pieces += (rest[done:at], value)
        else:
            pieces += (rest[done:at] + _BIN_32 + value.nbytes.to_bytes(4, "big"), value.data)
        done = at + _STAND_IN_BYTES
    return [*pieces, rest[done:]]


def joined_parts(pieces: Iterable[Piece]) -> Iterator[BodyPart]:
    """Yield the bytes of all pieces."""
    for piece in pieces:
        yield piece.packed if isinstance(piece, PackedField) else piece


def unpack(body: memoryview, spans: list[Span], pairs: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """Return the plain value of a body; the long byte strings at `spans` become memoryviews of the body.

    pairs: turns the key-value pairs of a map into a dict, and checks the keys.
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
