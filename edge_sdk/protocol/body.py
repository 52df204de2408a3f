"""The msgpack body of a frame, with long byte strings neither copied into it nor out of it.

The weights of a large model are nearly all of their frame.  The library would hold them two or three times on the way
to the frame and once more on the way back, which a small board does not have room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

LONG_BYTES = 2**20
"""Longer byte strings go by themselves; every Blob is shorter."""

Span: TypeAlias = tuple[int, int, int]
"""Of a long byte string in a body: where its value begins, where its bytes begin, where they end."""

Part: TypeAlias = bytes | memoryview

_BIN_32 = b"\xc6"
_PLACEHOLDER = 0


def raw(array: NDArray[Any]) -> bytes | NDArray[np.uint8]:
    """The bytes of an array, in C order; where they are many a view of them, for `pack`."""
    if array.nbytes <= LONG_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def pack(plain: Any) -> list[Part]:
    """The parts of a body, to be joined; arrays of u1 in `plain` are long byte strings and become parts themselves."""
    arrays: list[NDArray[np.uint8]] = []
    whole = _packed(plain, default=arrays.append)  # an array within is noted, and nil packed in its place
    return list(_parts(plain, msgpack.Packer())) if arrays else [whole]


def pack_tagged(tag: str, fields: Mapping[str, Any], packed: Mapping[str, Sequence[Part]]) -> list[Part]:
    """What pack([tag, fields]) gives, where the values of some fields are packed already."""
    packer = msgpack.Packer()
    parts: list[Part] = [packer.pack_array_header(2), _packed(tag), packer.pack_map_header(len(fields))]
    for name, value in fields.items():
        parts.append(_packed(name))
        parts += packed[name] if name in packed else pack(value)
    return parts


def unpack(body: memoryview, spans: list[Span], pairs: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """What stands in a body whose long byte strings are at `spans`: those come as memoryviews of it."""
    if not spans:
        return msgpack.unpackb(body, raw=False, strict_map_key=False, object_pairs_hook=pairs)

    def long(_code: int, number: bytes) -> memoryview:
        _, begin, end = spans[int.from_bytes(number, "big")]
        return body[begin:end]

    short = b"".join(_without(body, spans))
    return msgpack.unpackb(short, raw=False, strict_map_key=False, object_pairs_hook=pairs, ext_hook=long)


def _packed(value: Any, **options: Any) -> bytes:
    return cast("bytes", msgpack.packb(value, use_bin_type=True, **options))


def _parts(value: Any, packer: msgpack.Packer) -> Iterator[Part]:
    if isinstance(value, np.ndarray):
        yield _BIN_32 + value.nbytes.to_bytes(4, "big")
        yield value.data
    elif isinstance(value, dict):
        yield cast("bytes", packer.pack_map_header(len(value)))
        for key, each in value.items():
            yield _packed(key)
            yield from _parts(each, packer)
    elif isinstance(value, list):
        yield cast("bytes", packer.pack_array_header(len(value)))
        for each in value:
            yield from _parts(each, packer)
    else:
        yield _packed(value)


def _without(body: memoryview, spans: list[Span]) -> Iterator[bytes | memoryview]:
    """The body with a numbered placeholder for each long byte string."""
    at = 0
    for number, (value_at, _, end) in enumerate(spans):
        yield body[at:value_at]
        yield _packed(msgpack.ExtType(_PLACEHOLDER, number.to_bytes(2, "big")))
        at = end
    yield body[at:]
