"""The scan agrees with msgpack on what one whole value is, and by itself bounds what msgpack gets to build."""

from __future__ import annotations

import random
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from protocol_mutations import BODIES, BYTE_WISE

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames import scan as scanning
from edge_sdk.protocol.frames.scan import MAX_DEPTH, MAX_ITEMS, MAX_TEXT_BYTES, MAX_TEXTS_BYTES, MAX_VALUES, scan

BINARY = 1000


def verdict(body: bytes) -> str:
    try:
        scan(body, BINARY)
    except RemoteProtocolError as error:
        return error.kind
    return "passed"


def is_one_value(body: bytes) -> bool:
    """By msgpack's own word, whatever the value is."""
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
    unpacker.feed(body)
    try:
        unpacker.skip()
    except (ValueError, msgpack.OutOfData):
        return False
    return unpacker.tell() == len(body)


def check_agreement(body: bytes) -> None:
    found = verdict(body)
    if found == "passed":
        assert is_one_value(body)
    elif found == "msgpack" and is_one_value(body):
        with pytest.raises(RemoteProtocolError, match="extension"):
            scan(body, BINARY)


LEADS = st.sampled_from([*range(256), *(0x81, 0x91, 0x92, 0xA1, 0xC4, 0xD9, 0xDC, 0xDE) * 16])


@examples(1000)
@given(body=st.lists(LEADS, min_size=1, max_size=24).map(bytes))
def test_the_scan_agrees_with_msgpack_on_any_bytes(body):
    check_agreement(body)


def test_the_scan_agrees_with_msgpack_on_broken_messages():
    rng = random.Random(11)
    for _ in range(3000):
        check_agreement(rng.choice(BYTE_WISE)(rng, rng.choice(BODIES)))


UNLIKE = [msgpack.packb([None] * count + [bytes(size)]) for count in range(2) for size in range(100)]
"""So many that nothing of the bodies before them is remembered any more."""


def test_what_is_remembered_of_other_bodies_changes_nothing():
    """Bytes are exchanged, so that lengths are those of bodies that passed."""
    rng = random.Random(12)
    for body in BODIES * 40:
        assert verdict(body) == verdict(body)
        other = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            other[rng.randrange(len(body))] = rng.choice((*range(256), *b"\x81\x91\x92\xa1\xc4\xd9\xdc\xde" * 8))
        after = verdict(bytes(other))
        for unlike in UNLIKE:
            scan(unlike, BINARY)
        assert verdict(bytes(other)) == after


def test_bodies_that_differ_only_in_numbers_are_scanned_once(monkeypatch):
    walks: list[int] = []
    walk = scanning._walk
    monkeypatch.setattr(scanning, "_walk", lambda body, *rest: (walks.append(len(body)), walk(body, *rest))[1])
    monkeypatch.setattr(scanning, "_OUTLINES", {})
    like = [{"round": 1, "closing": False, "w": b"ab"}, {"round": 99, "closing": True, "w": b"cd"}]
    unlike = [{"round": 1, "closing": False, "v": [1, 2, 3]}, {"round": 200, "closing": False, "w": b"a"}]
    for body in map(msgpack.packb, like):
        assert scan(body, BINARY) == []
    assert len(walks) == 1
    for body in map(msgpack.packb, unlike):
        assert len(body) == walks[0]
        assert scan(body, BINARY) == []
    assert len(walks) == 3


def test_little_is_remembered():
    sizes = [*((3, size) for size in range(500)), *((60, size) for size in range(150))]
    bodies = [msgpack.packb([[*range(64)]] * count + [bytes(size)]) for count, size in sizes]
    tracemalloc.start()
    try:
        for body in bodies:
            assert verdict(body) == "passed"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lead", range(256))
def test_every_leading_byte_is_read_as_msgpack_reads_it(lead):
    """With zeros behind it, the shortest value of that lead: one byte less or more is no whole value."""
    sizes = [size for size in range(1, 80) if is_one_value(bytes([lead]) + bytes(size - 1))]
    passed = [size for size in range(1, 80) if verdict(bytes([lead]) + bytes(size - 1)) == "passed"]
    extension = 0xC7 <= lead <= 0xC9 or 0xD4 <= lead <= 0xD8
    assert passed == ([] if extension else sizes)


@pytest.mark.parametrize(
    ("fits", "too_much"),
    [
        (b"\x91" * MAX_DEPTH + b"\xc0", b"\x91" * (MAX_DEPTH + 1) + b"\xc0"),
        (b"\x91" * (MAX_DEPTH - 1) + b"\x90", b"\x91" * MAX_DEPTH + b"\x90"),
        (b"\x81\xc0" * MAX_DEPTH + b"\xc0", b"\x81\xc0" * (MAX_DEPTH + 1) + b"\xc0"),
        (b"\xdc\x00\x40" + b"\xc0" * MAX_ITEMS, b"\xdc\x00\x41" + b"\xc0" * (MAX_ITEMS + 1)),
        (b"\xde\x00\x40" + b"\xc0" * 2 * MAX_ITEMS, b"\xde\x00\x41" + b"\xc0" * 2 * (MAX_ITEMS + 1)),
        (msgpack.packb("x" * MAX_TEXT_BYTES), msgpack.packb("x" * (MAX_TEXT_BYTES + 1))),
        (msgpack.packb(["x" * 4096] * 32), msgpack.packb(["x" * 4096] * 32 + ["x"])),
        (msgpack.packb(bytes(BINARY)), msgpack.packb(bytes(BINARY + 1))),
    ],
    ids=["lists deep", "an empty list deep", "maps deep", "a list", "a map", "a text", "texts", "bytes"],
)
def test_the_limits_are_exact(fits, too_much):
    assert verdict(fits) == "passed"
    assert verdict(too_much) == "limit"
    assert MAX_TEXTS_BYTES == 32 * 4096


def test_values_are_counted_with_their_containers():
    row = b"\xdc\x00\x40" + b"\xc0" * 64  # 65 values
    fits = b"\xdc\x00\x3f" + row * 62 + b"\xdc\x00\x40" + b"\xc0" * 64
    assert MAX_VALUES == 1 + 63 * 65
    assert verdict(fits) == "passed"
    assert verdict(b"\xdc\x00\x40" + row * 63 + b"\xc0") == "limit"
