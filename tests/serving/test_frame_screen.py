"""What the coordinator's transport refuses before it keeps anything: topics, floods, and room for long frames."""

from __future__ import annotations

import pytest

from coordinator.serving.intake.frame_intake import (
    DUE,
    MEMBER,
    MOST_REPORTED,
    NO_PLACE,
    REPORT_S,
    STRANGER,
    FrameScreen,
)
from coordinator.serving.intake.shares import (
    EXCHANGE_EARNS,
    HELLO_COSTS,
    HONEST_COPIES,
    MOST_COPIES,
    MOST_NAMES,
    RATES,
    REPEAT_S,
    DeviceShares,
    TokenBucket,
)
from edge_sdk.device.session import AGAIN_S
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.transport import chunks
from edge_sdk.transport.base import Place
from edge_sdk.transport.chunks import CHUNK_BYTES, MAX_SETS, MIN_CHUNK_BYTES, Chunk, ChunkLayout, Reassembly

FED, MEMBERS, ROGUE = "fed", ("dev-0", "dev-1", "dev-2", "rogue"), "rogue"
FRAME_BYTES = 50 * 1024 * 1024
TOTAL_BYTES = 512 * 1024 * 1024


class Desk:
    """A screen with its shares; `due` are the devices whose upload is waited for."""

    def __init__(self, expected: int = 4) -> None:
        self.due: set[str] = set()
        self._sent = 0
        self.shares = DeviceShares(FRAME_BYTES, expected)
        self.screen = FrameScreen(
            federation=FED,
            frame_bytes=FRAME_BYTES,
            shares=self.shares,
            known=frozenset(MEMBERS).__contains__,
            due=lambda device: device in self.due,
        )

    def passed(self, device: str, kind: str, frames: int, *, at_s: float = 0.0, chunk: bool = False) -> int:
        """How many of so many frames pass, all at one time."""
        topic = topics.up(FED, device, kind)
        self._sent += frames
        frames_sent = range(self._sent - frames, self._sent)
        return sum(self.screen.passes(topic, b"%d" % number, at_s, chunk=chunk) for number in frames_sent)

    def counted(self, at_s: float = 1e6) -> dict[tuple[str, str], int]:
        """What it reports as refused: sender and word -> count."""
        return {(topics.origin(each.topic).device, each.kind): each.count for each in self.screen.refused(at_s)}


def test_a_bucket_holds_what_time_and_earnings_add_up_to_its_limit() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3.0)
    assert [bucket.take(1.0, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0, 0.5) for _ in range(2)] == [True, False]
    assert [bucket.take(1.0, 0.25) for _ in range(1)] == [False]  # a clock that goes back adds nothing
    bucket.earn(100.0)
    assert [bucket.take(1.0, 0.5) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0, 1e9) for _ in range(4)] == [True, True, True, False]


def test_exchanges_that_earn_frames_fill_a_bucket_to_its_limit_and_not_beyond() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3.0)
    assert bucket.take(1.0, 0.0)
    bucket.earn(100.0)
    assert [bucket.take(1.0, 0.0) for _ in range(4)] == [True, True, True, False]


def test_a_flood_is_cut_to_the_senders_share_and_others_keep_theirs() -> None:
    """1,400 frames a second for a minute."""
    desk = Desk()
    passed = sum(desk.passed(ROGUE, "upd", 1400, at_s=float(second)) for second in range(60))
    assert passed == RATES.burst + 59 * RATES.per_s
    assert desk.passed("dev-0", "upd", 50, at_s=59.0) == 50
    assert desk.counted() == {(ROGUE, "rate"): 60 * 1400 - passed}


def test_a_device_that_repeats_an_upload_without_pause_can_still_send_the_next() -> None:
    """The same bytes take nothing of its share; after a while they are answered again."""
    desk, topic = Desk(), topics.up(FED, ROGUE, "upd")
    passed = sum(desk.screen.passes(topic, b"first", number / 1400, chunk=False) for number in range(14_000))
    assert passed == 10 / REPEAT_S
    assert desk.screen.passes(topic, b"second", 10.0, chunk=False)
    assert desk.counted() == {(ROGUE, "rate"): 14_000 - (1 + HONEST_COPIES) * passed}


def test_what_a_restart_makes_an_honest_device_send_again_is_refused_to_nobody() -> None:
    """The upload, a second delivery of it, and its repetition a second later, which had the faster way."""
    desk, topic = Desk(), topics.up(FED, "dev-0", "upd")
    times_s = (0.2, 0.25, AGAIN_S)
    assert [desk.screen.passes(topic, b"upload", at_s, chunk=False) for at_s in times_s] == [True, False, True]
    assert desk.counted() == {}


@pytest.mark.parametrize("earlier", [True, False], ids=["an upload came before", "only a Hello came before"])
def test_what_came_while_the_coordinator_stood_still_accuses_nobody(*, earlier: bool) -> None:
    """A process that was stopped for 45 s, and then gets in one moment what a device has sent each second."""
    desk, topic, away_s = Desk(), topics.up(FED, "dev-0", "upd"), 45.0
    if earlier:
        assert desk.screen.passes(topic, b"upload", 0.0, chunk=False)
    else:
        assert desk.passed("dev-0", "hello", 1) == 1
    passed = [desk.screen.passes(topic, b"upload", away_s + at / 1000, chunk=False) for at in range(45)]
    assert passed == [True] + 44 * [False]
    assert desk.counted() == {}


def test_a_long_silence_leaves_a_flood_its_limit_and_its_report() -> None:
    desk, topic = Desk(), topics.up(FED, ROGUE, "upd")
    assert desk.screen.passes(topic, b"upload", 0.0, chunk=False)
    passed = sum(desk.screen.passes(topic, b"upload", 3600.0 + at / 4000, chunk=False) for at in range(1000))
    assert passed == 1
    assert desk.counted() == {(ROGUE, "rate"): 1000 - 1 - MOST_COPIES}


def test_answers_that_were_asked_for_are_never_too_many() -> None:
    """A hundred exchanges within one second."""
    desk = Desk()
    for _ in range(100):
        desk.shares.earned("dev-0", EXCHANGE_EARNS)
        assert desk.passed("dev-0", "upd", EXCHANGE_EARNS) == EXCHANGE_EARNS
    assert desk.counted() == {}


def test_the_longest_upload_may_come_twice_in_the_smallest_chunks_for_each_exchange() -> None:
    desk, chunks = Desk(), FRAME_BYTES // MIN_CHUNK_BYTES
    for _ in range(3):
        desk.shares.earned("dev-0", EXCHANGE_EARNS)
        assert desk.passed("dev-0", "upd", 2 * chunks, chunk=True) == 2 * chunks
    assert desk.passed("dev-0", "upd", 1000, chunk=True) < 1000
    assert desk.passed("dev-0", "upd", 1) == 1  # chunks take nothing from other frames


def test_a_hello_counts_for_several_frames() -> None:
    assert Desk().passed("dev-0", "hello", 1000) == RATES.burst // HELLO_COSTS


def test_strangers_share_one_bucket_however_many_names_they_invent() -> None:
    desk, most = Desk(expected=10), RATES.strangers_burst + 10 * RATES.joining_burst
    passed = sum(desk.passed(f"name-{number}", "upd", 1) for number in range(20_000))
    assert passed == most
    assert desk.passed("dev-0", "hello", 1) == 1
    counted = desk.counted()
    assert sum(counted.values()) == 20_000 - passed
    assert len(counted) <= MOST_REPORTED + 1


def test_all_devices_of_a_run_may_join_at_once_twice() -> None:
    desk = Desk(expected=1000)
    for _ in range(2):
        for number in range(1000):
            assert desk.screen.passes(topics.device_status(FED, f"new-{number}"), b"birth", 0.0, chunk=False)
            assert desk.passed(f"new-{number}", "hello", 1) == 1


def test_one_stranger_does_not_use_up_what_all_have_together() -> None:
    desk = Desk()
    assert desk.passed("loud", "hello", 100_000) == RATES.stranger_burst // HELLO_COSTS
    assert desk.passed("quiet", "hello", 1) == 1


def test_shares_of_strangers_are_kept_for_a_limited_number_of_names() -> None:
    """The share of the name that was heard least lately is forgotten, so memory does not grow with invented names."""
    desk, burst = Desk(expected=1000), int(RATES.stranger_burst)
    for others, passed in ((0, burst), (MOST_NAMES - 1, 0), (MOST_NAMES, burst)):
        assert sum(desk.passed(f"name-{others}-{number}", "upd", 1) for number in range(others)) == others
        assert desk.passed("loud", "upd", burst) == passed


def test_refused_frames_are_reported_once_a_second_and_summed_up() -> None:
    desk = Desk()
    desk.screen.passes("made/up", b"", 0.0, chunk=True)
    desk.screen.passes(f"fl/v1/{FED}/up/made-up/{ROGUE}/upd", b"", 0.0, chunk=True)
    desk.passed("nobody", "upd", 3, chunk=True)
    assert desk.counted(0.0) == {("", "topic"): 1, (ROGUE, "topic"): 1, ("nobody", "stranger"): 3}
    desk.screen.passes("made/up", b"", 0.5, chunk=False)
    assert desk.counted(REPORT_S / 2) == {}
    assert desk.counted(REPORT_S) == {("", "topic"): 1}


def test_an_empty_message_clears_a_retained_one_and_accuses_nobody() -> None:
    """`lab revoke` publishes it on the topics of the revoked device; it still costs its sender's share."""
    desk = Desk()
    for topic in (topics.device_status(FED, ROGUE), topics.up(FED, ROGUE, "hello")):
        assert not desk.screen.passes(topic, b"", 0.0, chunk=False)
    assert desk.counted(0.0) == {}
    for _ in range(100_000):
        desk.screen.passes(topics.device_status(FED, ROGUE), b"", 0.0, chunk=False)
    assert (ROGUE, "rate") in desk.counted()


# --- room for long frames


def first_chunk(number: int, total_bytes: int) -> Chunk:
    """The first chunk of a frame of this length that never comes whole."""
    layout = ChunkLayout(number.to_bytes(16, "little"), total_bytes, MIN_CHUNK_BYTES)
    found = chunks.unpack_packet(chunks.pack_chunk(layout, 0, bytes(MIN_CHUNK_BYTES)))
    assert isinstance(found, Chunk)
    return found


class Room:
    """Chunks as they pass the screen and reach the assembly."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.assembly, self.refused = desk, Reassembly(FRAME_BYTES, TOTAL_BYTES), list[str]()
        self.assembly.place_of = desk.screen.place

    def chunk(self, topic: str, chunk: Chunk, now_s: float) -> object:
        """Take a chunk; the frame that it completes."""
        if not self.desk.screen.passes(topic, b"", now_s, chunk=True):
            return None
        try:
            return self.assembly.take(topic, chunk, now_s)
        except RemoteProtocolError as error:
            self.refused.append(error.kind)
            return None

    def upload(self, device: str, now_s: float) -> bool:
        """Send a long upload; whether it arrives."""
        frame = device.encode() * (300 * 1024)
        layout = ChunkLayout(chunks.set_id(frame), len(frame), CHUNK_BYTES)
        found: object = None
        for index in range(layout.count):
            packet = chunks.unpack_packet(chunks.pack_chunk(layout, index, frame))
            assert isinstance(packet, Chunk)
            found = self.chunk(topics.up(FED, device, "upd"), packet, now_s)
        return found == frame


def test_only_uploads_get_the_room_of_an_upload() -> None:
    desk, short = Desk(), CONTROL_LIMITS.frame_bytes
    desk.due = {"dev-0"}
    found = {
        (device, kind): desk.screen.place(topics.up(FED, device, kind))
        for device in ("dev-0", "dev-1", "nobody")
        for kind in topics.UP_KINDS
    }
    assert {key: place for key, place in found.items() if place != NO_PLACE} == {
        ("dev-0", "upd"): Place(FRAME_BYTES, DUE),
        ("dev-1", "upd"): Place(FRAME_BYTES, MEMBER),
        **{(device, kind): Place(short, MEMBER) for device in ("dev-0", "dev-1") for kind in ("hello", "log")},
        ("nobody", "hello"): Place(short, STRANGER),
    }


@pytest.mark.parametrize(("shards", "kinds"), [(16, 64), (64, 16)])
def test_made_up_topics_of_one_id_hold_no_places(shards: int, kinds: int) -> None:
    """With them, one sender could announce all the room there is, and keep it with 34 kB a second."""
    room = Room(Desk())
    for shard in range(shards):
        for kind in range(kinds):
            room.chunk(f"fl/v1/{FED}/up/{shard}/{ROGUE}/k{kind}", first_chunk(0, FRAME_BYTES), 0.0)
    assert room.assembly.announced_bytes == 0
    assert room.upload("dev-0", 0.0)
    assert room.desk.counted() == {(ROGUE, "topic"): shards * kinds}


def test_a_device_has_one_place_for_each_kind_of_long_frame() -> None:
    room = Room(Desk())
    for number in range(100):
        for kind in sorted(topics.UP_KINDS):
            room.chunk(topics.up(FED, ROGUE, kind), first_chunk(number, FRAME_BYTES), 0.0)
            room.chunk(topics.up(FED, ROGUE, kind), first_chunk(number, CONTROL_LIMITS.frame_bytes), 0.0)
    assert room.assembly.announced_bytes <= FRAME_BYTES + 2 * CONTROL_LIMITS.frame_bytes
    assert set(room.refused) == {"limit"}


def test_devices_that_hold_all_places_give_way_to_uploads_that_are_due() -> None:
    """Ten members and thousands of strangers announce as much as they may, and go on; the eleventh's upload is due."""
    desk = Desk()
    members = [f"member-{number}" for number in range(12)]
    desk.screen = FrameScreen(
        federation=FED,
        frame_bytes=FRAME_BYTES,
        shares=desk.shares,
        known=lambda device: device in MEMBERS or device in members,
        due=lambda device: device in desk.due,
    )
    room = Room(desk)
    for number in range(MAX_SETS + 10):
        room.chunk(topics.up(FED, f"name-{number}", "hello"), first_chunk(number, CONTROL_LIMITS.frame_bytes), 0.0)
    for member in members:
        room.chunk(topics.up(FED, member, "upd"), first_chunk(0, FRAME_BYTES), 0.0)
    assert "busy" in room.refused
    room.refused.clear()
    desk.due = {"dev-0", "dev-1", "dev-2"}
    for device in sorted(desk.due):
        assert room.upload(device, 0.0)
    assert room.refused == []
