"""A seeded engine of broken frames, and the judge of what decoding may do with them.

Half of the mutants are broken byte by byte, half as a tree of msgpack values that is packed again; most get a right
length and checksum afterwards, so that they reach the decoder.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import numpy as np
from protocol_samples import FRAMES, WIDE, body_of, seal

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import HEADER_BYTES, decode, encode

KINDS = frozenset({"magic", "version", "length", "checksum", "limit", "msgpack", "schema", "tensor", "nonfinite"})
"""The words under which a frame may be refused here; signature, topic and knowledge belong to other checks."""

CORPUS = tuple(FRAMES.values())
BODIES = tuple(body_of(frame) for frame in CORPUS)
LENGTHS = (0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS = (*LENGTHS, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e300, math.nan, math.inf, -math.inf, True)


@dataclasses.dataclass(frozen=True)
class Raw:
    """Bytes that stand in a tree as they are: what no packer would make."""

    data: bytes


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A map whose keys may repeat."""

    items: tuple[tuple[Any, Any], ...]


def pack(value: Any) -> bytes:
    """A tree as msgpack, with Raw and Pairs in it."""
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, list):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(pack, value))
    if isinstance(value, (dict, Pairs)):
        items = tuple(value.items()) if isinstance(value, dict) else value.items
        return b"\xdf" + len(items).to_bytes(4, "big") + b"".join(pack(k) + pack(v) for k, v in items)
    return msgpack.packb(value)


# -- bytes ----------------------------------------------------------------------------------------------------------

LEADS = b"\x00\x7f\x80\x81\x8f\x90\x91\x9f\xa0\xa1\xbf\xc0\xc1\xc2\xc4\xc7\xca\xcb\xcf\xd3\xd4\xd9\xdc\xdd\xde\xdf\xff"
SIZED = ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xC9, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4), (0xDC, 2), (0xDD, 4), (0xDF, 4))


def flip(rng: random.Random, data: bytes) -> bytes:
    """Between one and eight bits."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def change(rng: random.Random, data: bytes) -> bytes:
    """One byte, to one that means something to msgpack."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.choice(LEADS)]) + data[at + 1 :]


def cut(rng: random.Random, data: bytes) -> bytes:
    """The end or the beginning is missing."""
    at = rng.randrange(len(data))
    return data[:at] if rng.random() < 0.8 else data[at:]


def insert(rng: random.Random, data: bytes) -> bytes:
    """Random bytes anywhere."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """A slice again, up to a thousand times."""
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, 32))
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 10, 1000)) + data[end:]


def splice(rng: random.Random, data: bytes) -> bytes:
    """The beginning of this and the end of another."""
    other = rng.choice(BODIES)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def stretch(rng: random.Random, data: bytes) -> bytes:
    """An extreme length behind a leading byte that asks for one."""
    at = rng.randrange(len(data))
    lead, width = rng.choice(SIZED)
    return data[:at] + bytes([lead]) + (rng.choice(LENGTHS) % 256**width).to_bytes(width, "big") + data[at + 1 :]


BYTE_WISE = (flip, change, cut, insert, repeat, splice, stretch)


def spoil_header(rng: random.Random, frame: bytes) -> bytes:
    """An extreme in the header's own length, or in any four of its bytes."""
    at = 8 if rng.random() < 0.5 else rng.randrange(HEADER_BYTES - 4)
    return frame[:at] + rng.choice(LENGTHS).to_bytes(4, "little") + frame[at + 4 :]


# -- trees ----------------------------------------------------------------------------------------------------------

HOSTILE = (
    *(b"\x91" * 7 + b"\xc0", b"\x91" * 30 + b"\xc0", b"\x91" * 1200 + b"\xc0", b"\x81\xa1a" * 40 + b"\xc0"),  # deep
    *(
        b"\xdc\x00\x41" + b"\x80" * 65,
        b"\xdc\x10\x00" + b"\x90" * 4096,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ),
    *(
        b"\xa3\xff\xfe\xfd",
        b"\xa3\xed\xa0\x80",
        b"\xa4\xf8\x88\x80\x80",
        b"\xdb\xff\xff\xff\xff",
        b"\xa1\x00",
        b"\xa3\x1b[m",
    ),
    *(b"\xd4\x05\x00", b"\xd6\xff" + b"\x00" * 4, b"\xd7\xff" + b"\xff" * 8, b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc1"),
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf0" + b"\x00" * 6),
    *(
        b"\x82\xa1a\xc0\xa1a\xc0",
        b"\x81\xc0\xc0",
        b"\x81\x90\xc0",
        b"\x81\xc4\x01a\xc0",
        b"\x81\xcb\x7f\xf8" + b"\x00" * 7,
    ),
)
"""Depth, width, bad text, extension types, odd numbers, odd keys."""
ODD = (None, True, False, "", "x", "é" * 300, "x" * 5000, b"", b"\x00" * 7, b"\xff" * 40, [], {}, [[]], {"": {}})
MORE = ([None] * 64, [None] * 65, ["f4", [1], b"\x00" * 4], ["logits", {}], {"tau": math.nan}, ["local", 1])
DTYPES = ("f4", "f2", "i4", "i1", "u1", "f8", "<f4", ">f4", "O", "V8", "M8", "object", "", "f4,f4", "float32", "U1")
EXTENTS = (0, -1, 1, 2, 3, 4, 12, True, False, None, 1.0, "3", 10**15, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64 - 1)
TAGS = ("hello", "upload", "assign", "logits", "class-rows", "hyper-knowledge", "weights", "spec", "upload2", "", "bye")
KEYS = ("new-field", "samples", "", "x" * 70, "é", b"raw", 7, -1.5, None, *(Raw(data) for data in HOSTILE))

Spot = tuple[Any, Any]
"""A container and the index or key of a value in it."""


def hostile(rng: random.Random) -> Any:
    """A value from the lists above."""
    pick = rng.randrange(3)
    return Raw(rng.choice(HOSTILE)) if pick == 0 else copy.deepcopy(rng.choice((ODD + MORE, NUMBERS)[pick - 1]))


def spots(tree: Any) -> list[Spot]:
    """Every place in a tree where a value stands."""
    found: list[Spot] = []
    level = [tree]
    while level:
        container = level.pop()
        for key in range(len(container)) if isinstance(container, list) else list(container):
            found.append((container, key))
            if isinstance(container[key], (list, dict)):
                level.append(container[key])
    return found


def put(rng: random.Random, tree: Any) -> None:
    """Any value in any place."""
    container, key = rng.choice(spots(tree))
    container[key] = hostile(rng)


def swap(rng: random.Random, tree: Any) -> None:
    """Two values change places."""
    (a, i), (b, j) = rng.choice(spots(tree)), rng.choice(spots(tree))
    a[i], b[j] = copy.deepcopy(b[j]), copy.deepcopy(a[i])


def drop(rng: random.Random, tree: Any) -> None:
    """A field or an element is missing."""
    container, key = rng.choice(spots(tree))
    del container[key]


def add(rng: random.Random, tree: Any) -> None:
    """A field or an element too many; half of the time in the message itself, where an unknown field is legal."""
    container = rng.choice(spots(tree))[0] if rng.random() < 0.5 else tree[1]
    if isinstance(container, list):
        container.insert(rng.randint(0, len(container)), hostile(rng))
    else:
        container[rng.choice(KEYS)] = hostile(rng)


def twice(rng: random.Random, tree: Any) -> None:
    """A map with one of its keys twice."""
    container, key = rng.choice([(c, k) for c, k in spots(tree) if isinstance(c[k], dict) and c[k]])
    items = tuple(container[key].items())
    container[key] = Pairs((*items, rng.choice(items)))


def retag(rng: random.Random, tree: Any) -> None:
    """Another tag, on the message or on something inside."""
    tagged = [c for c, k in spots(tree) if isinstance(c, list) and len(c) == 2 and k == 0]
    rng.choice(tagged)[0] = rng.choice(TAGS)


def spoil_number(rng: random.Random, tree: Any) -> None:
    """A number becomes an extreme, NaN or infinite."""
    numbers = [(c, k) for c, k in spots(tree) if isinstance(c[k], (int, float))]
    container, key = rng.choice(numbers or [(tree[1], "round")])
    container[key] = rng.choice(NUMBERS)


def spoil_tensor(rng: random.Random, tree: Any) -> None:
    """A dtype, a shape, a length or a value that must not be; any spoilt number where there is no tensor."""
    values = [c[k] for c, k in spots(tree)]
    tensors = [v for v in values if isinstance(v, list) and len(v) == 3 and isinstance(v[2], bytes)]
    if not tensors:
        return spoil_number(rng, tree)
    tensor = rng.choice(tensors)
    raw: bytes = tensor[2]
    what = rng.randrange(5)
    if what == 0:
        tensor[0] = rng.choice(DTYPES)
    elif what == 1:
        tensor[1] = [rng.choice(EXTENTS) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 70)))]
    elif what == 2:
        tensor[1][rng.randrange(len(tensor[1]))] = rng.choice(EXTENTS)
    elif what == 3:
        bad = np.array(rng.choice((math.nan, math.inf, -math.inf)), "<f2" if tensor[0] == "f2" else "<f4").tobytes()
        at = rng.randrange(len(raw) // len(bad)) * len(bad)
        tensor[2] = raw[:at] + bad + raw[at + len(bad) :]
    else:
        tensor[2] = rng.choice((b"", raw[:-1], raw * 2, raw + b"\x00", b"\xff" * len(raw)))
    return None


TREE_WISE = (put, put, swap, drop, add, twice, retag, spoil_number, spoil_tensor, spoil_tensor)


# -- engine and judge -----------------------------------------------------------------------------------------------


def mutants(seed: int, count: int) -> Iterator[bytes]:
    """Broken frames, the same for the same seed; now and then one that happens to be legal."""
    rng = random.Random(seed)
    for _ in range(count):
        way = rng.random()
        if way < 0.1:
            yield spoil_header(rng, rng.choice(CORPUS))
        elif way < 0.25:
            yield rng.choice(BYTE_WISE)(rng, rng.choice(CORPUS))
        elif way < 0.5:
            yield seal(rng.choice(BYTE_WISE)(rng, rng.choice(BODIES)))
        else:
            tree = msgpack.unpackb(rng.choice(BODIES))
            rng.choice(TREE_WISE)(rng, tree)
            yield seal(pack(tree))


def judge(frame: bytes) -> str:
    """Decode; "accepted", or the word under which the frame was refused.  Anything else is an error."""
    try:
        envelope = decode(frame, WIDE)
    except RemoteProtocolError as error:
        text = str(error)
        word = "version" if error.kind == "encryption" else error.kind  # a version byte of 2 alone says encrypted
        if word not in KINDS or not text.isprintable() or len(text) > 400:
            raise AssertionError(f"{error.kind}: {text!r}") from None
        return word
    check_clean(envelope.message)
    if decode(encode(envelope.message, envelope.stamp), WIDE) != envelope:
        raise AssertionError(f"does not survive a second trip: {frame.hex()}")
    return "accepted"


def check_clean(value: object) -> None:
    """Raise unless a decoded value is finite and cannot be changed, through and through."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable or not np.isfinite(value).all() or 0 in value.shape:
            raise AssertionError(f"array {value.shape} is writable, empty or not finite")
    elif isinstance(value, float) and not math.isfinite(value):
        raise AssertionError("a number is not finite")
    elif isinstance(value, Mapping):
        for inner in value.values():
            check_clean(inner)
        try_to_write(value)
    elif isinstance(value, tuple):
        for inner in value:
            check_clean(inner)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            check_clean(getattr(value, field.name))
    elif not isinstance(value, (bool, int, float, str, bytes, type(None))):
        raise AssertionError(f"a {type(value).__name__} came out")


def try_to_write(value: Mapping[Any, Any]) -> None:
    """Raise unless the map refuses."""
    try:
        value["planted"] = 1  # type: ignore[index]  # this is the question
    except TypeError:
        return
    raise AssertionError("a received map can be written to")


def run(seed: int, count: int) -> Counter[str]:
    """How many mutants met which end."""
    return Counter(judge(frame) for frame in mutants(seed, count))
