"""The wire format of Protocol Buffers, as far as .onnx files use it: fields in, fields out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from edge_sdk.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The wire types; 3 and 4 are groups, which no .onnx file has."""
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """One field of a message."""

    number: int
    value: int | memoryview
    """A whole number, or the content of a string, a message, packed numbers or a float."""
    raw: memoryview
    """The whole field, with its tag."""

    @property
    def content(self) -> memoryview:
        """The value of a field that must hold bytes.  Raises ModelError for a whole number."""
        if isinstance(self.value, int):
            raise damaged(f"field {self.number} holds a number in place of bytes")
        return self.value

    @property
    def text(self) -> str:
        """The value as a string."""
        return bytes(self.content).decode("utf-8", "replace")

    @property
    def whole(self) -> int:
        """The value as a signed whole number.  Raises ModelError for bytes."""
        if not isinstance(self.value, int):
            raise damaged(f"field {self.number} holds bytes in place of a number")
        return signed(self.value)


def damaged(what: str) -> ModelError:
    """The error of a file that breaks the wire format."""
    return ModelError(f"not an .onnx file, or a damaged one: {what}")


def fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in their order.  Raises ModelError where it is damaged."""
    at, end = 0, len(message)
    while at < end:
        start = at
        tag, at = read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        value: int | memoryview
        if kind == VARINT:
            value, at = read_varint(message, at)
        elif kind in (BYTES, FIXED32, FIXED64):
            size, at = read_varint(message, at) if kind == BYTES else (4 if kind == FIXED32 else 8, at)
            value, at = message[at : at + size], at + size
        else:
            raise damaged(f"unknown wire type {kind} at byte {start}")
        if at > end or number == 0:
            raise damaged(f"field {number} at byte {start} of {end} is cut off" if number else f"no field at {start}")
        yield Field(number, value, message[start:at])


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a byte, and the byte after it.  Raises ModelError where it is cut off."""
    value = 0
    for i in range(_LONGEST_VARINT):
        if at + i >= len(message):
            break
        byte = message[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise damaged(f"a number at byte {at} is cut off")


def whole_numbers(field: Field) -> list[int]:
    """Return the signed numbers of a repeated field, packed or alone."""
    if isinstance(field.value, int):
        return [signed(field.value)]
    found, at = [], 0
    while at < len(field.value):
        value, at = read_varint(field.value, at)
        found.append(signed(value))
    return found


def text_in(message: memoryview, number: int) -> str:
    """Return the string in a field of a message, or "" without it."""
    return next((part.text for part in fields(message) if part.number == number), "")


def signed(value: int) -> int:
    """Return a 64-bit number in two's complement as a signed one."""
    return value - (1 << 64) if value >= 1 << 63 else value


def single(value: int | memoryview) -> float:
    """Return a float field.  Raises ModelError for another kind."""
    if isinstance(value, int) or len(value) != 4:
        raise damaged("a float has another size than 4 bytes")
    return float(struct.unpack("<f", value)[0])


def put_varint(value: int) -> bytes:
    """Encode a number; a negative one in two's complement of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put(number: int, value: int | str | bytes | memoryview) -> bytes:
    """Encode a field: a whole number, a string, bytes or a message."""
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    content = value.encode() if isinstance(value, str) else value
    return b"".join((put_varint(number << 3 | BYTES), put_varint(len(content)), content))


def put_single(number: int, value: float) -> bytes:
    """Encode a float field."""
    return put_varint(number << 3 | FIXED32) + struct.pack("<f", value)


def replaced(message: memoryview, path: tuple[int, ...], content: bytes) -> bytes:
    """Return a message with another content of one field: the first at each step of `path`, by number."""
    parts, done = [], False
    for field in fields(message):
        if field.number == path[0] and not done:
            inner = content if len(path) == 1 else replaced(field.content, path[1:], content)
            parts.append(put(field.number, inner))
            done = True
        else:
            parts.append(bytes(field.raw))
    return b"".join(parts)
