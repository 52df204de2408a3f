"""The checks that a frame passes before it is used, and the words under which it is counted."""

from __future__ import annotations

import pytest

from coordinator.record.run_record import RunRecord
from coordinator.serving.intake.frame_intake import Intake, booked_to
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.protocol.messages import Bye, DeviceStatus, Hello, PublicBlock, Upload
from edge_sdk.protocol.operator_messages import Control
from edge_sdk.transport.base import Incoming

FED, MEMBER, STRANGER = "fed", "member", "stranger"
SHARD = topics.shard(MEMBER)


def intake() -> Intake:
    return Intake(FED, CONTROL_LIMITS, {MEMBER}.__contains__)


def upload(device: str = MEMBER, federation: str = FED) -> bytes:
    return codec.encode(Upload(federation=federation, device=device, round=0, exchange=0))


def word_for(topic: str, frame: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as refused:
        intake().opened(Incoming(topic, frame), topics.origin(topic))
    return refused.value.kind


@pytest.mark.parametrize(
    "topic",
    [
        f"fl/v1/{FED}/up/{SHARD + 1}/{MEMBER}/upd",
        f"fl/v1/{FED}/up/0{SHARD}/{MEMBER}/upd",
        f"fl/v1/{FED}/up/{SHARD}/{MEMBER}/upload",
        f"fl/v1/{FED}/up/{SHARD}/{MEMBER}/upd/upd",
        f"fl/v1/{FED}/up/{SHARD}/{MEMBER}/",
        f"fl/v1/{FED}/up/{SHARD}/{MEMBER.upper()}/upd",
        f"fl/v2/{FED}/up/{SHARD}/{MEMBER}/upd",
        f"fl/v1/{FED}/st/{MEMBER}/more",
        f"fl/v1/{FED}/ctl/more",
        topics.up("another", MEMBER, "upd"),
        f"fl/v1/{'x' * 70_000}/ctl",
        "upd",
        "",
    ],
)
def test_a_topic_that_the_protocol_does_not_list(topic: str) -> None:
    assert word_for(topic, upload()) == "topic"


@pytest.mark.parametrize("kind", sorted(topics.UP_KINDS - {"hello", "bye"}))
def test_a_stranger_is_refused_before_its_frame_is_decoded(kind: str) -> None:
    assert word_for(topics.up(FED, STRANGER, kind), b"not a frame") == "stranger"


def test_a_member_is_refused_for_what_its_frame_is() -> None:
    where = topics.up(FED, MEMBER, "upd")
    assert word_for(where, b"not a frame") == "magic"
    assert word_for(where, upload(federation="other")) == "topic"
    assert word_for(where, upload(STRANGER)) == "topic"
    assert word_for(topics.control(FED), upload()) == "topic"
    block = PublicBlock(federation=FED, device=MEMBER, sha256=bytes(32), index=0, count=1, total_bytes=1, data=b"x")
    assert word_for(topics.up(FED, MEMBER, "get"), codec.encode(block)) == "topic"  # only operators send files


def test_legal_frames_are_opened() -> None:
    hello = Hello(federation=FED, device=STRANGER, classes=2)
    status = DeviceStatus(federation=FED, device=STRANGER, state="ready", boot=1)
    legal = {
        topics.up(FED, MEMBER, "upd"): Upload(federation=FED, device=MEMBER, round=0, exchange=0),
        topics.up(FED, STRANGER, "hello"): hello,
        topics.up(FED, STRANGER, "bye"): Bye(federation=FED, device=STRANGER),
        topics.device_status(FED, STRANGER): status,
        topics.control(FED): Control(federation=FED, operation="drain"),
    }
    for topic, message in legal.items():
        opened = intake().opened(Incoming(topic, codec.encode(message)), topics.origin(topic))
        assert opened.envelope.message == message


def test_a_frame_is_counted_for_whom_its_topic_names() -> None:
    assert booked_to(topics.origin(topics.up(FED, STRANGER, "upd"))) == STRANGER
    assert booked_to(topics.origin(f"fl/v1/{FED}/up/made-up/{STRANGER}/made-up")) == STRANGER
    assert booked_to(topics.origin(topics.control(FED))) == "unknown"


def test_invented_names_do_not_take_the_entry_of_a_device_that_takes_part() -> None:
    record = RunRecord()
    for number in range(1000):
        record.refused_frame(f"name-{number}", "stranger", named=False)
    record.refused_frame(MEMBER, "rate", count=7)
    assert len(record.refused_frames) == 102
    assert record.refused_frames["others"]["stranger"] == 900
    assert record.refused_frames[MEMBER] == {"rate": 7}


def test_a_word_outside_the_list_is_counted_as_knowledge() -> None:
    record = RunRecord()
    record.refused_frame(MEMBER, "my-own-word")
    assert record.refused_frames == {MEMBER: {"knowledge": 1}}
