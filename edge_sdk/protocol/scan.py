"""A look over a msgpack body before anything is built from it.

One pass over the leading bytes of all values, in constant memory: a body that is deeper, wider or wordier than any
message can be costs this pass and nothing else.  What the decoder gets to see is bounded in structure; all that
remains, the bytes of the tensors, is as long in memory as it is on the wire.

What a scan finds hangs on nothing but the length of the body and the bytes that it looks at, which lead a value or give
its length: the outline.  A body with the outline of one that passed needs no pass of its own, and nearly every frame of
a federation is one: another device's, of another round, with other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.body import LONG_BYTES, Span

MAX_DEPTH = 8
"""Lists and maps inside one another.  The deepest legal value has seven: body > fields > knowledge > [tag, payload] >
fields > tensor > shape; one is left for fields of later versions."""
MAX_ITEMS = 64
"""Entries of any list or map: no message has more fields, roles, terms, metrics or hyper-parameters."""
MAX_VALUES = 4096
"""Values in one body, keys and containers included: 64 common and 64 personal roles come to 2,600."""
MAX_TEXT_BYTES = 4 * 1024
"""One string: a remedy of 1,024 characters, at most four bytes each."""
MAX_TEXTS_BYTES = 128 * 1024
"""All strings together: 64 hyper-parameters of 256 characters come to 70 KiB."""

_PLAIN, _TEXT, _BINARY, _LIST, _MAP, _OTHER = range(6)


def _leads() -> Iterator[tuple[int, int, int]]:
    """For each leading byte: the kind of value, the width of a length field behind it, or else the length itself."""
    yield from ((_PLAIN, 0, 0) for _ in range(0x80))  # small integers
    yield from ((_MAP, 0, size) for size in range(16))  # 0x80
    yield from ((_LIST, 0, size) for size in range(16))  # 0x90
    yield from ((_TEXT, 0, size) for size in range(32))  # 0xa0
    yield from ((_PLAIN, 0, 0), (_OTHER, 0, 0), (_PLAIN, 0, 0), (_PLAIN, 0, 0))  # 0xc0: nil, unused, false, true
    yield from ((_BINARY, width, 0) for width in (1, 2, 4))  # 0xc4
    yield from ((_OTHER, 0, 0) for _ in range(3))  # 0xc7: extensions
    yield from ((_PLAIN, 0, size) for size in (4, 8))  # 0xca: floats
    yield from ((_PLAIN, 0, size) for size in (1, 2, 4, 8, 1, 2, 4, 8))  # 0xcc: integers without and with sign
    yield from ((_OTHER, 0, 0) for _ in range(5))  # 0xd4: extensions
    yield from ((_TEXT, width, 0) for width in (1, 2, 4))  # 0xd9
    yield from ((_LIST, width, 0) for width in (2, 4))  # 0xdc
    yield from ((_MAP, width, 0) for width in (2, 4))  # 0xde
    yield from ((_PLAIN, 0, 0) for _ in range(0xE0, 0x100))  # small negative integers


_LEADS = tuple(_leads())
_STEPS = tuple(1 + size if kind == _PLAIN or (kind == _TEXT and not width) else 0 for kind, width, size in _LEADS)
"""How far on the next value is, where the leading byte alone tells; elsewhere 0."""
_STEPS_COUNTED = tuple(step if kind == _PLAIN else 0 for step, (kind, _, _) in zip(_STEPS, _LEADS, strict=True))
"""The same, but for texts: where there may be too much of them they are counted."""


_Outline: TypeAlias = "tuple[Callable[[bytes | memoryview], Any], Any, list[Span]]"
"""What takes the bytes looked at out of a body; these bytes; where the long byte strings are."""

_OUTLINES: dict[tuple[int, int], _Outline] = {}
"""Of bodies that passed, by their length and the limit."""
_REMEMBERED, _PLACES = 128, 256
"""So many outlines of so many places are remembered: a megabyte, whatever anybody sends."""


def scan(body: bytes | memoryview, binary_bytes: int) -> list[Span]:
    """Where the long byte strings of a body are.

    Raises RemoteProtocolError unless `body` is one msgpack value within the limits above, and nothing behind it.
    `binary_bytes` is the longest byte string that is legal.  Whether texts are UTF-8 and keys are texts is left to the
    decoder.
    """
    outline = _OUTLINES.get((len(body), binary_bytes))
    if outline is not None and outline[0](body) == outline[1]:
        return outline[2]
    places: list[int] = []
    try:
        spans = _walk(body, binary_bytes, places)
    except IndexError:
        raise RemoteProtocolError("msgpack", f"body of {len(body)} bytes ends in the middle of a value") from None
    if len(places) <= _PLACES:
        if len(_OUTLINES) >= _REMEMBERED:
            _OUTLINES.clear()
        look = itemgetter(*places)
        _OUTLINES[len(body), binary_bytes] = look, look(body), spans
    return spans


def _walk(body: bytes | memoryview, binary_bytes: int, places: list[int]) -> list[Span]:
    """What scan does, and the places that it looks at; IndexError where the body ends too early."""
    at = 0
    outer: list[int] = []
    left = 1  # values still to come in the innermost container; `outer`: in those around it
    values, texts = 1, 0
    spans: list[Span] = []
    steps = _STEPS if len(body) + MAX_TEXT_BYTES <= MAX_TEXTS_BYTES else _STEPS_COUNTED
    while True:
        while left:
            left -= 1
            places.append(at)
            lead = body[at]
            step = steps[lead]
            if step:
                at += step
                continue
            begin = at
            kind, width, size = _LEADS[lead]
            at += 1 + width
            if width:
                places += range(at - width, at)
                size = int.from_bytes(body[at - width : at], "big")
            if kind == _TEXT:
                at += size
                texts += size
                if size > MAX_TEXT_BYTES or texts > MAX_TEXTS_BYTES:
                    raise _too_much(f"a text of more than {MAX_TEXT_BYTES} bytes, or {MAX_TEXTS_BYTES} in all")
            elif kind == _BINARY:
                at += size
                if size > binary_bytes:
                    raise _too_much(f"a byte string of {size} bytes, at most {binary_bytes} are legal here")
                if size > LONG_BYTES:
                    spans.append((begin, at - size, at))
            elif kind == _OTHER:
                raise RemoteProtocolError("msgpack", "an extension type: the protocol has none")
            else:
                outer.append(left)
                left = size * (kind - _LIST + 1)  # a map has a key to each value
                values += left
                if size > MAX_ITEMS or values > MAX_VALUES or len(outer) > MAX_DEPTH:
                    raise _too_much(f"more than {MAX_ITEMS} entries, {MAX_DEPTH} levels or {MAX_VALUES} values")
        if not outer:
            break
        left = outer.pop()
    if at != len(body):
        raise RemoteProtocolError("msgpack", f"body of {len(body)} bytes, but its value ends at {at}")
    return spans


def _too_much(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("limit", f"body holds {what}")
