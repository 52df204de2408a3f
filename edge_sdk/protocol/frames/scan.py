"""Checks the structure of a msgpack body before it is decoded.

A scan reads the first byte and the length of every value in one pass and in constant memory.  A body with more levels,
entries or text than any legal message is refused at the cost of this pass, so the decoder only sees bodies of bounded
structure; tensors take no more memory than on the wire.

The result depends only on the body's length and on the bytes that the scan reads, the body's outline.  First bytes
count there by their value's kind and length, so that all small integers are alike.  A body with a known outline is not
scanned again, which covers nearly all frames of a federation: they differ from earlier ones in numbers, not in
structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.body import LONG_BYTES, Span

MAX_DEPTH = 8
"""Most levels of lists and maps.  The deepest legal value has seven: body > fields > knowledge > [tag, payload] >
fields > tensor > shape.  One more is for fields of later versions."""
MAX_ITEMS = 64
"""Most entries of a list or map: no message has more fields, roles, terms, metrics or hyper-parameters."""
MAX_VALUES = 4096
"""Most values in a body, keys and containers included: 64 common and 64 personal roles have 2,600."""
MAX_TEXT_BYTES = 4 * 1024
"""Longest text: a remedy has up to 1,024 characters of up to four bytes."""
MAX_TEXTS_BYTES = 128 * 1024
"""Most bytes of all texts together: 64 hyper-parameters of 256 characters have 70 KiB."""

_PLAIN, _TEXT, _BINARY, _LIST, _MAP, _OTHER = range(6)


def _leads() -> Iterator[tuple[int, int, int]]:
    """Yield for each possible first byte the kind of value, the width of its length field, and its fixed length."""
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
"""Bytes from a value to the next one, for first bytes that determine it, or else 0."""
_STEPS_COUNTED = tuple(step if kind == _PLAIN else 0 for step, (kind, _, _) in zip(_STEPS, _LEADS, strict=True))
"""The same with 0 for texts, for bodies long enough to hold too much text, so that texts are counted."""


_ALIKE = bytes(map(_LEADS.index, _LEADS))
"""For each first byte, the smallest one with the same kind and length of value."""


class _Outline(NamedTuple):
    """The bytes that decide whether an earlier scan's result holds for a body of the same length."""

    read: Callable[[bytes | memoryview], tuple[int, ...]]
    """Returns the bytes of a body that its scan read: the first bytes of all values, then those of length fields."""
    alike: bytes
    """These bytes, as `_ALIKE` translates them."""
    lengths: bytes
    """The bytes of the length fields, unchanged."""
    spans: list[Span]
    """The result of the scan."""

    def covers(self, body: bytes | memoryview) -> bool:
        """Whether a body has this outline."""
        read = bytes(self.read(body))
        return read.translate(_ALIKE) == self.alike and read.endswith(self.lengths)


_OUTLINES: dict[tuple[int, int], _Outline] = {}
"""The outlines of legal bodies, by the length of the body and the limit."""
_REMEMBERED, _OFFSETS = 128, 256
"""The maximum number of remembered outlines, and of offsets in one, which bounds the memory to 1 MB."""


def scan(body: bytes | memoryview, binary_bytes: int) -> list[Span]:
    """Return the spans of the long byte strings in a body.

    Raises RemoteProtocolError unless the body is exactly one msgpack value within the limits above.  binary_bytes: the
    longest legal byte string.  The decoder checks whether texts are UTF-8 and keys are texts.
    """
    outline = _OUTLINES.get((len(body), binary_bytes))
    if outline is not None and outline.covers(body):
        return outline.spans
    firsts: list[int] = []
    lengths: list[int] = []
    try:
        spans = _walk(body, binary_bytes, firsts, lengths)
    except IndexError:
        raise RemoteProtocolError("msgpack", f"body of {len(body)} bytes ends in the middle of a value") from None
    if len(firsts) + len(lengths) <= _OFFSETS:
        if len(_OUTLINES) >= _REMEMBERED:
            _OUTLINES.clear()
        _OUTLINES[len(body), binary_bytes] = _outline(body, firsts, lengths, spans)
    return spans


def _outline(body: bytes | memoryview, firsts: list[int], lengths: list[int], spans: list[Span]) -> _Outline:
    """Return the outline of a body, from the offsets that `_walk` found and the spans."""
    read = itemgetter(0, *firsts, *lengths)  # the extra 0 makes it return a tuple even for a single offset
    return _Outline(read, bytes(read(body)).translate(_ALIKE), bytes(body[at] for at in lengths), spans)


def _walk(body: bytes | memoryview, binary_bytes: int, firsts: list[int], lengths: list[int]) -> list[Span]:
    """Scan a body, and add the offsets of the bytes read to both lists; raises IndexError if the body ends too early.

    firsts: the first bytes of all values.  lengths: the bytes of length fields.
    """
    at = 0
    outer: list[int] = []
    left = 1  # values still to come in the innermost container; `outer` holds those of the containers around it
    values, texts = 1, 0
    spans: list[Span] = []
    steps = _STEPS if len(body) + MAX_TEXT_BYTES <= MAX_TEXTS_BYTES else _STEPS_COUNTED
    while True:
        while left:
            left -= 1
            firsts.append(at)
            lead = body[at]
            step = steps[lead]
            if step:
                at += step
                continue
            begin = at
            kind, width, size = _LEADS[lead]
            at += 1 + width
            if width:
                lengths += range(at - width, at)
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
                raise RemoteProtocolError("msgpack", "an extension type, which the protocol does not use")
            else:
                outer.append(left)
                left = size * (kind - _LIST + 1)  # a map has a key for each value
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
