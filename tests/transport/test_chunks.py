"""Long frames in chunks: cut, lost, repeated, overtaken, lied about, and put together again."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.transport import chunks
from edge_sdk.transport.base import Incoming, Place, Rejected
from edge_sdk.transport.chunks import (
    EVICT_AFTER_S,
    FIRST_REQUEST_S,
    GIVE_UP_S,
    HEADER_BYTES,
    IGNORE_COMPLETE_S,
    MIN_CHUNK_BYTES,
    Chunk,
    ChunkLayout,
    ChunkRequest,
    MissingChunks,
    Reassembly,
)
from edge_sdk.transport.mqtt.incoming import ChunkedLink
from edge_sdk.transport.mqtt.send_queue import MAX_CHUNKS_IN_FLIGHT, MAX_SENT_AGE_S, Pace, SendQueue, cloud_safe

UP, DOWN_WANT = topics.up("fed", "dev", "upd"), topics.down("fed", "dev", "want")
FRAME = random.Random(1).randbytes(5 * MIN_CHUNK_BYTES + 77)
SHAPE = ChunkLayout(chunks.set_id(FRAME), len(FRAME), MIN_CHUNK_BYTES)


class Clock:
    """Time that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def chunk(index: int, layout: ChunkLayout = SHAPE, frame: bytes = FRAME) -> Chunk:
    found = chunks.unpack_packet(chunks.pack_chunk(layout, index, frame))
    assert isinstance(found, Chunk)
    return found


def outbox(clock: Clock | None = None, pace: Pace | None = None) -> SendQueue:
    box = SendQueue(pace, clock or Clock())
    box.link_up(MIN_CHUNK_BYTES)
    return box


# --- packets


def test_a_packet_byte_by_byte() -> None:
    frame = bytes(range(256)) * 80
    packet = chunks.pack_chunk(ChunkLayout(b"0123456789abcdef", len(frame), MIN_CHUNK_BYTES), 1, frame)
    rest = b"0123456789abcdef" + struct.pack("<III", 20480, 16384, 1) + frame[16384:]
    assert packet == b"EDGC\1\1\0\0" + zlib.crc32(rest).to_bytes(4, "little") + rest


def test_a_want_names_at_most_1024_ranges_and_comes_back_as_it_was() -> None:
    layout = ChunkLayout(bytes(16), 5000 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES)
    ranges = tuple((2 * n, 2 * n) for n in range(2000))
    assert chunks.unpack_packet(chunks.pack_request(layout, ranges)) == ChunkRequest(layout, ranges[:1024])


@given(st.data())
def test_a_damaged_packet_is_refused_and_never_misread(data: st.DataObject) -> None:
    packet = bytearray(chunks.pack_chunk(SHAPE, data.draw(st.integers(0, 5)), FRAME))
    at = data.draw(st.integers(4, HEADER_BYTES + 50))
    packet[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteProtocolError):
        chunks.unpack_packet(bytes(packet))


@given(st.binary(max_size=200))
def test_whatever_follows_the_magic_raises_nothing_else(rest: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        chunks.unpack_packet(chunks.MAGIC + rest)


def forged(*fields: int, body: bytes = b"", kind: int = 1) -> bytes:
    rest = bytes(16) + struct.pack("<III", *fields) + body
    return b"EDGC\1" + bytes([kind]) + b"\0\0" + zlib.crc32(rest).to_bytes(4, "little") + rest


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (forged(10 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES - 1, 0), "are not a chunk set"),
        (forged(MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 0), "are not a chunk set"),
        (forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 2, body=bytes(5)), "chunk 2 of a set of 2"),
        (
            forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 0, body=bytes(5)),
            "chunk 0 has 5 bytes, expected 16384",
        ),
        (forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 3, kind=2), "a want of 3 ranges in 0 bytes"),
        (forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 1, kind=2, body=struct.pack("<II", 1, 2)), "a want beyond the 2"),
        (forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 1, kind=2, body=struct.pack("<II", 1, 0)), "a want beyond the 2"),
        (
            forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 2, kind=2, body=struct.pack("<IIII", 0, 1, 0, 1)),
            "or not ascending",
        ),
        (forged(2 * MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, 0, kind=3), "of a later version"),
    ],
)
def test_a_packet_that_lies(packet: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        chunks.unpack_packet(packet)


# --- putting together


@given(st.permutations(range(6)))
def test_chunks_in_any_order_give_the_frame(order: list[int]) -> None:
    assembly = Reassembly(len(FRAME), len(FRAME))
    *first, last = order
    assert [assembly.take("t", chunk(index), 0.0) for index in first] == [None] * 5
    assert assembly.take("t", chunk(last), 0.0) == FRAME
    assert assembly.announced_bytes == 0


def test_a_set_longer_than_a_frame_may_be_is_refused_at_its_first_chunk() -> None:
    assembly = Reassembly(len(FRAME) - 1, 10 * len(FRAME))
    with pytest.raises(RemoteProtocolError, match="at most") as error:
        assembly.take("t", chunk(0), 0.0)
    assert error.value.kind == "limit"
    assert assembly.announced_bytes == 0


def test_no_room_beside_the_others() -> None:
    assembly = Reassembly(len(FRAME), 2 * len(FRAME))
    assembly.take("a", chunk(0), 0.0)
    assembly.take("b", chunk(0), 0.0)
    with pytest.raises(RemoteProtocolError) as error:
        assembly.take("c", chunk(0), 0.0)
    assert error.value.kind == "busy"
    for index in range(1, 6):
        done = assembly.take("a", chunk(index), 0.0)
    assert done == FRAME
    assert assembly.take("c", chunk(0), 0.0) is None


def test_many_sets_begun_and_never_completed_hold_no_more_than_the_budget() -> None:
    budget_bytes = 20 * len(FRAME)
    assembly, taken = Reassembly(len(FRAME), budget_bytes), 0
    tracemalloc.start()
    for device in range(500):
        other = os.urandom(len(FRAME))
        layout = ChunkLayout(chunks.set_id(other), len(other), MIN_CHUNK_BYTES)
        for index in range(5):
            with suppress(RemoteProtocolError):
                assembly.take(f"t/{device}", chunk(index, layout, other), 0.0)
                taken += 1
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken == 20 * 5
    assert peak_bytes < budget_bytes * 1.3
    assert len(assembly.expired(GIVE_UP_S)) == 20
    assert assembly.announced_bytes == 0


def test_a_set_that_fell_silent_gives_way_and_is_told_of() -> None:
    assembly = Reassembly(len(FRAME), 2 * len(FRAME))
    assembly.take("silent", chunk(0), 0.0)
    assembly.take("busy", chunk(0), 0.0)
    assembly.take("busy", chunk(1), EVICT_AFTER_S - 1)
    with pytest.raises(RemoteProtocolError, match="no room"):
        assembly.take("newer", chunk(0), EVICT_AFTER_S - 1)
    assert assembly.take("newer", chunk(0), EVICT_AFTER_S) is None
    [(topic, reason)] = assembly.expired(EVICT_AFTER_S)
    assert (topic, "5 missing" in reason) == ("silent", True)
    with pytest.raises(RemoteProtocolError, match="no room"):
        assembly.take("another", chunk(0), EVICT_AFTER_S)  # the two others are heard of


def test_a_flood_of_sets_is_bounded_in_number_and_asked_for_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.transport.chunks.MAX_SETS", 100)
    assembly = Reassembly(len(FRAME), 1000 * len(FRAME))
    for device in range(100):
        assembly.take(f"t/{device}", chunk(0), 0.0)
    with pytest.raises(RemoteProtocolError, match="no room"):
        assembly.take("t/one-more", chunk(0), 0.0)
    looks = [len(assembly.stalled(FIRST_REQUEST_S + second)) for second in (0.0, 0.01, 0.05, 0.11, 0.12)]
    assert looks == [64, 0, 0, 36, 0]


def test_an_upload_that_is_due_takes_the_room_of_others() -> None:
    """However fresh they are; an upload of the same rank waits, and one of a lower rank takes nothing."""
    assembly, ranks = Reassembly(len(FRAME), 2 * len(FRAME)), {"due": 2, "late": 1, "stranger": 0, "too": 2}
    assembly.place_of = lambda topic: Place(len(FRAME), ranks[topic])
    assembly.take("late", chunk(0), 0.0)
    assembly.take("stranger", chunk(0), 0.0)
    assert assembly.take("due", chunk(0), 0.0) is None
    assert [topic for topic, _ in assembly.expired(0.0)] == ["stranger"]
    with pytest.raises(RemoteProtocolError) as refused:
        assembly.take("stranger", chunk(0), EVICT_AFTER_S)  # the others are silent, and yet it does not take their room
    assert refused.value.kind == "busy"
    assert assembly.take("too", chunk(0), 0.0) is None
    assert [topic for topic, _ in assembly.expired(0.0)] == ["late"]
    assert assembly.announced_bytes == 2 * len(FRAME)


def test_a_topic_may_have_a_limit_of_its_own() -> None:
    assembly = Reassembly(len(FRAME), 10 * len(FRAME))
    assembly.place_of = lambda topic: Place(len(FRAME) if topic == "long" else 0, 0)
    assert assembly.take("long", chunk(0), 0.0) is None
    with pytest.raises(RemoteProtocolError) as refused:
        assembly.take("none", chunk(0), 0.0)
    assert refused.value.kind == "limit"


def test_two_versions_of_one_chunk() -> None:
    assembly = Reassembly(len(FRAME), len(FRAME))
    other = bytes(len(FRAME))
    assembly.take("t", chunk(2), 0.0)
    with pytest.raises(RemoteProtocolError, match=r"chunks 2 .*differ"):
        assembly.take("t", chunk(2, SHAPE, other), 0.0)
    assert assembly.announced_bytes == 0


def test_a_set_that_is_not_what_its_digest_says() -> None:
    assembly, liar = Reassembly(len(FRAME), len(FRAME)), ChunkLayout(bytes(16), len(FRAME), MIN_CHUNK_BYTES)
    for index in range(5):
        assembly.take("t", chunk(index, liar), 0.0)
    with pytest.raises(RemoteProtocolError, match="digest"):
        assembly.take("t", chunk(5, liar), 0.0)
    assert assembly.announced_bytes == 0


def test_a_newer_set_on_a_topic_takes_the_place_of_the_older() -> None:
    assembly, newer = Reassembly(len(FRAME), len(FRAME)), FRAME[::-1]
    layout = ChunkLayout(chunks.set_id(newer), len(newer), MIN_CHUNK_BYTES)
    assembly.take("t", chunk(0), 0.0)
    assert [assembly.take("t", chunk(index, layout, newer), 0.0) for index in range(6)][-1] == newer
    [(topic, reason)] = assembly.expired(0.0)
    assert (topic, "5 missing" in reason) == ("t", True)
    assert assembly.announced_bytes == 0


def test_what_is_missing_is_asked_for_ever_less_often_and_given_up_in_the_end() -> None:
    assembly, asked = Reassembly(len(FRAME), len(FRAME)), []
    for index in (0, 3):
        assembly.take("t", chunk(index), 0.0)
    for second in range(int(GIVE_UP_S)):
        assert assembly.expired(float(second)) == ()
        asked += [(second, missing) for missing in assembly.stalled(float(second))]
    assert asked[0] == (FIRST_REQUEST_S, MissingChunks("t", SHAPE, ((1, 2), (4, 5))))
    assert [second for second, _ in asked] == [1, 3, 7, 15, 31, 63, *range(123, 600, 60)]
    [(topic, reason)] = assembly.expired(GIVE_UP_S)
    assert topic == "t"
    assert "4 missing" in reason


def test_a_complete_set_sent_again_is_let_rest_for_a_while() -> None:
    """Its sender only waits for an answer: nothing is asked of it, and nothing is handed on twice."""
    assembly = Reassembly(len(FRAME), len(FRAME))
    for index in range(6):
        assembly.take("t", chunk(index), 0.0)
    assert [assembly.take("t", chunk(index), IGNORE_COMPLETE_S - 1) for index in range(6)] == [None] * 6
    assert assembly.stalled(IGNORE_COMPLETE_S - 0.5) == ()
    assert [assembly.take("t", chunk(index), IGNORE_COMPLETE_S) for index in range(6)][-1] == FRAME


def test_a_chunk_that_comes_again_is_answered_with_what_is_missing_but_not_each_time() -> None:
    assembly = Reassembly(len(FRAME), len(FRAME))
    assembly.take("t", chunk(0), 0.0)
    assert assembly.take("t", chunk(0), 0.1) is None
    assert assembly.take("t", chunk(0), 0.3) == MissingChunks("t", SHAPE, ((1, 5),))
    assert assembly.take("t", chunk(0), 0.4) is None


# --- sending


def drained(box: SendQueue, first_id: int = 1) -> list[tuple[str, int]]:
    """What goes out while the broker acknowledges at once: (topic, chunk index or -1)."""
    sent, packet_id = [], first_id
    while (item := box.next()) is not None:
        box.note_sent(packet_id, item)
        box.note_acknowledged(packet_id)
        sent.append((item.topic, item.chunk[1] if item.chunk else -1))
        packet_id += 1
    return sent


def test_short_frames_go_first_and_long_ones_in_turn() -> None:
    box = outbox()
    box.put("long/a", FRAME)
    box.put("long/b", FRAME[::-1])
    box.put("short", b"1")
    sent = drained(box)
    assert sent[0] == ("short", -1)
    assert sent[1:5] == [("long/a", 0), ("long/b", 0), ("long/a", 1), ("long/b", 1)]
    assert len(sent) == 13


def test_four_chunks_and_eight_messages_are_with_the_broker() -> None:
    box = outbox()
    box.put("long", FRAME)
    for number in range(4):
        item = box.next()
        assert item is not None
        box.note_sent(number, item)
    assert box.next() is None
    for _ in range(6):
        box.put("short", b"1")
    for number in range(4, 8):
        item = box.next()
        assert item is not None
        box.note_sent(number, item)
    assert box.next() is None
    assert MAX_CHUNKS_IN_FLIGHT == 4


def test_a_frame_put_again_while_it_is_on_its_way_is_not_sent_twice() -> None:
    box = outbox()
    for _ in range(3):
        box.put(UP, FRAME)
    assert [index for _, index in drained(box)] == [0, 1, 2, 3, 4, 5]


def test_a_frame_that_was_cut_off_goes_on_when_it_is_put_again() -> None:
    box = outbox()
    box.put(UP, FRAME)
    for number in range(3):
        item = box.next()
        assert item is not None
        box.note_sent(number, item)
    box.note_acknowledged(0)
    box.link_lost()
    box.put(UP, FRAME)
    assert box.next() is None
    box.link_up(None)
    assert box.next() is None
    box.put(UP, FRAME)
    assert [index for _, index in drained(box)] == [1, 2, 3, 4, 5]


def test_nothing_is_left_to_send_once_every_chunk_is_acknowledged() -> None:
    box = outbox()
    box.put(UP, FRAME)
    begun_s = time.monotonic()
    box.wait_until_idle(0.05)
    assert time.monotonic() - begun_s >= 0.05
    drained(box)
    box.wait_until_idle(3600.0)


def test_a_frame_put_again_after_it_was_sent_only_asks() -> None:
    box = outbox()
    box.put(UP, FRAME)
    drained(box)
    box.put(UP, FRAME)
    assert [index for _, index in drained(box)] == [0]
    box.requeue_chunks(ChunkRequest(SHAPE, ((2, 3), (5, 5))))
    assert [index for _, index in drained(box)] == [2, 3, 5]
    box.requeue_chunks(ChunkRequest(ChunkLayout(bytes(16), len(FRAME), MIN_CHUNK_BYTES), ((0, 5),)))
    assert drained(box) == []


def test_a_sent_frame_is_kept_for_a_while_only() -> None:
    clock = Clock()
    box = outbox(clock)
    box.put(UP, FRAME)
    drained(box)
    clock.now_s += MAX_SENT_AGE_S + 1
    box.put("other", FRAME[::-1])
    drained(box)
    box.requeue_chunks(ChunkRequest(SHAPE, ((0, 5),)))
    assert drained(box) == []


def test_smaller_chunks_after_a_broker_that_hung_up_on_larger_ones() -> None:
    box = SendQueue()
    assert box.shrink_chunks(box.chunk_bytes + HEADER_BYTES)
    assert box.chunk_bytes == 32 * 1024
    assert box.shrink_chunks(20_000)
    assert box.chunk_bytes == MIN_CHUNK_BYTES
    assert not box.shrink_chunks(MIN_CHUNK_BYTES + HEADER_BYTES)


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.transport.mqtt.send_queue.MAX_LONG_BYTES", int(1.5 * len(FRAME)))
    monkeypatch.setattr("edge_sdk.transport.mqtt.send_queue.MAX_SHORT", 2)
    box = outbox()
    assert [box.put("long/a", FRAME), box.put("long/b", FRAME), box.put("long/a", FRAME[::-1])] == [True, False, True]
    assert [box.put("short", b"1") for _ in range(3)] == [True, True, False]


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=60), st.floats(0.01, 3.0))
def test_no_ten_seconds_see_more_than_the_pace_allows(sizes: list[int], step_s: float) -> None:
    pace, now_s, sent = cloud_safe(), 0.0, []
    for size in sizes:
        now_s += step_s * 0.01
        while (wait_s := pace.wait_s(now_s)) > 0:
            now_s += wait_s
        pace.spend(size)
        sent.append((now_s, size))
    for begin_s, _ in sent:
        window = [size for at_s, size in sent if begin_s <= at_s <= begin_s + 10.0]
        assert len(window) <= 10 * 11 + 1
        assert sum(window) <= 512_000 * 11 + 60_000


def test_the_pace_holds_back_what_waits_and_says_for_how_long() -> None:
    clock = Clock()
    box = outbox(clock, Pace(publishes_per_s=2.0))
    for _ in range(5):
        box.put("t", b"1")
    assert len(drained(box)) == 3
    assert box.next_in_s() == pytest.approx(0.5)
    clock.now_s += 0.5
    assert len(drained(box)) == 1


# --- both ends, and a bad line between them


@examples(60)
@given(seed=st.integers(0, 2**32 - 1), loss=st.floats(0.0, 0.4), twice=st.floats(0.0, 0.3))
def test_a_long_frame_crosses_a_line_that_loses_repeats_and_reorders(seed: int, loss: float, twice: float) -> None:
    """Also across a restart of either end in the middle: the sender sends it anew, and is told what is there.

    The last missing chunk needs its echo, the want and itself to arrive in one 5 s cycle: at 40 % loss the 60 cycles
    below all fail once in two million runs, at 60 % once in fifty.
    """
    rng, clock = random.Random(seed), Clock()
    sender_box, receiver_box = outbox(clock), outbox(clock)
    assembly = Reassembly(len(FRAME), len(FRAME))
    sender, receiver = ChunkedLink(sender_box, Reassembly(0, 0)), ChunkedLink(receiver_box, assembly)
    sender_box.put(UP, FRAME)
    packet_id = 0
    for turn in range(3000):
        clock.now_s += 0.1
        if turn == 5 and rng.random() < 0.3:
            sender_box = outbox(clock)
            sender = ChunkedLink(sender_box, Reassembly(0, 0))
        if turn == 8 and rng.random() < 0.3:
            receiver = ChunkedLink(receiver_box, Reassembly(len(FRAME), len(FRAME)))
        if turn % 50 == 10:
            sender_box.put(UP, FRAME)  # no receipt came: those above send it again
        for box, other in ((sender_box, receiver), (receiver_box, sender)):
            items = []
            while (item := box.next()) is not None:
                packet_id += 1
                box.note_sent(packet_id, item)
                box.note_acknowledged(packet_id)
                items += [item] * ((rng.random() >= loss) * (1 + (rng.random() < twice)))
            rng.shuffle(items)
            for item in items:
                event = other.receive(item.topic, item.payload, clock.now_s)
                if isinstance(event, Incoming):
                    assert event.frame == FRAME
                    return
                assert event is None
        assert list(receiver.check_timeouts(clock.now_s)) == []
    raise AssertionError("the frame never arrived")


def test_what_is_refused_is_told_with_its_topic_and_kind() -> None:
    link = ChunkedLink(outbox(), Reassembly(10, 10))
    event = link.receive(UP, chunks.pack_chunk(SHAPE, 0, FRAME), 0.0)
    assert isinstance(event, Rejected)
    assert (event.topic, event.kind) == (UP, "limit")
    assert "at most 10 " in event.reason


def test_a_set_that_is_never_completed_is_told_and_asked_for_on_the_devices_topic() -> None:
    box = outbox()
    link = ChunkedLink(box, Reassembly(len(FRAME), len(FRAME)))
    link.receive(UP, chunks.pack_chunk(SHAPE, 0, FRAME), 0.0)
    assert list(link.check_timeouts(FIRST_REQUEST_S)) == []
    item = box.next()
    assert item is not None
    assert item.topic == DOWN_WANT
    assert chunks.unpack_packet(item.payload) == ChunkRequest(SHAPE, ((1, 5),))
    [rejected] = link.check_timeouts(GIVE_UP_S)
    assert (rejected.topic, rejected.kind) == (UP, "incomplete")


@pytest.mark.parametrize(
    ("topic", "answer"),
    [
        (UP, DOWN_WANT),
        (topics.down("fed", "dev", "task"), topics.up("fed", "dev", "want")),
        (topics.device_status("fed", "dev"), None),
        ("elsewhere", None),
    ],
)
def test_where_a_want_goes(topic: str, answer: str | None) -> None:
    assert topics.chunk_request_topic(topic) == answer
