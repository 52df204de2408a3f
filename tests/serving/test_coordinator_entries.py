"""The coordinator, a device and an operator's program survive any frame: they refuse it, count it, and take the next."""

from __future__ import annotations

import logging
from pathlib import Path

import fleets
import pytest
import strangers
from hypothesis import given
from properties import examples

from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.operator_messages import ControlAnswer, Inquiry
from edge_sdk.tools.operator.link import OperatorLink
from edge_sdk.transport.base import Connected, Incoming, TransportEvent

FED, OWN = "tiny", "device-00"
KEPT = {name: strangers.frame(body) for name, body in strangers.kept("body").items()} | strangers.kept("text")
UP = [topics.up(FED, OWN, kind) for kind in sorted(topics.UP_KINDS)]
ENTRIES = [*UP, topics.device_status(FED, OWN), topics.control(FED), f"fl/v1/{FED}/up/\ud800/{OWN}/hello"]


def begun(pictures: Path) -> fleets.Run:
    """A run in which both devices have joined."""
    run = fleets.Run(fleets.built(pictures, devices=2, rounds=2))
    assert OWN in run.fleet.federation.roster
    run.server.connect()
    for device in run.devices:
        device.connect()
    while len(run.server.numbers) < 2:
        assert run.clock.step()
    return run


@pytest.fixture(scope="module")
def run(pictures: Path) -> fleets.Run:
    return begun(pictures)


def refused(run: fleets.Run) -> int:
    return sum(words.total() for words in run.server.record.refused_frames.values())


@pytest.mark.parametrize("topic", ENTRIES, ids=range(len(ENTRIES)))
def test_the_coordinator_counts_kept_frames(run: fleets.Run, topic: str) -> None:
    for frame in KEPT.values():
        before = refused(run)
        run.server.handle(Incoming(topic, frame), run.clock.now_s)
        assert refused(run) == before + 1


@examples(400)
@given(frame=strangers.frames(FED, OWN))
def test_the_coordinator_survives_any_frame(run: fleets.Run, frame: bytes) -> None:
    for topic in ENTRIES:
        run.server.handle(Incoming(topic, frame), run.clock.now_s)


def test_whatever_reading_a_frame_raises_is_counted_in_one_line(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(pictures)
    device = run.devices[0].participant

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(codec, "decode", fails)
    with caplog.at_level(logging.WARNING):
        for topic in (UP[0], topics.control(FED)):
            run.server.handle(Incoming(topic, b"x"), 0.0)
        device.handle(Incoming(topics.down(FED, OWN, "join"), b"x"), 0.0)
    assert run.server.record.refused_frames[OWN]["schema"] == 1
    assert run.server.record.refused_frames["unknown"]["schema"] == 1
    assert "MemoryError" in caplog.text
    assert all("\n" not in record.getMessage() and record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("name", KEPT)
def test_a_device_counts_kept_frames(run: fleets.Run, name: str) -> None:
    device = run.devices[0].participant
    before = device.incoming.refused.total()
    device.handle(Incoming(topics.down(FED, OWN, "join"), KEPT[name]), run.clock.now_s)
    assert device.incoming.refused.total() == before + 1


@examples(400)
@given(frame=strangers.frames(FED, OWN))
def test_a_device_survives_any_frame(run: fleets.Run, frame: bytes) -> None:
    run.devices[1].participant.handle(Incoming(topics.down(FED, "device-01", "join"), frame), run.clock.now_s)
    run.devices[0].participant.handle(Incoming(topics.down(FED, OWN, "join"), frame), run.clock.now_s)


class Answers:
    """A transport on which these frames come, and then the answer to what was asked."""

    def __init__(self, *frames: bytes) -> None:
        self.events: list[TransportEvent] = [Connected(), *(Incoming("ans", frame) for frame in frames)]

    def connect(self, subscriptions: object) -> None:
        pass

    def send(self, _topic: str, frame: bytes) -> None:
        asked = codec.decode(frame).message
        assert isinstance(asked, Inquiry)
        answer = ControlAnswer(federation=FED, operator="me", request=asked.request, done=True, text="here")
        self.events.append(Incoming("ans", codec.encode(answer)))

    def poll(self, _timeout_s: float) -> TransportEvent | None:
        return self.events.pop(0) if self.events else None


@examples(300)
@given(frame=strangers.frames(FED, OWN))
def test_an_operator_gets_the_answer_whatever_else_comes(frame: bytes) -> None:
    link = OperatorLink(Answers(frame, *KEPT.values()), FED, "me", timeout_s=5.0)  # type: ignore[arg-type]
    assert link.ask(link.inquiry("devices")).text == "here"
