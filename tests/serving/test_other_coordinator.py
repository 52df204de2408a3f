"""A second coordinator of one federation: what it sees before it begins, and what both say if their link is fought for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import fleets
import pytest
from notes import Notes

from coordinator.serving.restart import ANSWER_S, LINK_S, SETTLE_S, another_serves
from coordinator.serving.server import LINK_TOLD_S
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import CoordinatorStatus, Message
from edge_sdk.protocol.operator_messages import ControlAnswer, Inquiry
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Screen, TransportEvent, Will

FED, ASKS = "tiny", "operator-1"


def frame(message: Message, topic: str = "coord") -> Incoming:
    return Incoming(topic, codec.encode(message))


def status(state: str, federation: str = FED) -> Incoming:
    return frame(CoordinatorStatus(federation=federation, state=state, epoch=1))


def answers(inquiry: Inquiry) -> ControlAnswer:
    return ControlAnswer(federation=FED, operator=inquiry.operator, request=inquiry.request, done=True)


class Broker:
    """A transport on which these events come, each poll of it taking its whole time; and a coordinator that answers."""

    def __init__(self, *events: TransportEvent, answer: Callable[[Inquiry], Message | None] | None = None) -> None:
        self.now_s, self.closed, self.asked = 0.0, False, 0
        self._events, self._answer = deque(events), answer

    def clock(self) -> float:
        return self.now_s

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        assert topics.coordinator_status(FED) in subscriptions
        assert will is None

    def send(self, topic: str, frame_: bytes, *, retain: bool = False, answered: bool = False) -> None:
        assert (topic, retain, answered) == (topics.control(FED), False, False)
        self.asked += 1
        question = codec.decode(frame_).message
        assert isinstance(question, Inquiry)
        answer = self._answer(question) if self._answer is not None else None
        if answer is not None:
            self._events.append(frame(answer, topics.control_answer(FED, ASKS)))

    def poll(self, timeout_s: float) -> TransportEvent | None:
        self.now_s += timeout_s
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        self.closed = True

    def accept_up_to(self, frame_bytes: int) -> None:
        """Nothing here is long."""

    def screen_with(self, screen: Screen) -> None:
        """All pass."""

    def found(self) -> bool:
        found = another_serves(self, FED, ASKS, self.clock)
        assert self.closed
        return found


@pytest.mark.parametrize("events", [(Connected(), status("ready")), (status("ready"), Connected())])
def test_a_coordinator_that_answers_is_found(events: tuple[TransportEvent, ...]) -> None:
    broker = Broker(*events, answer=answers)
    assert broker.found()
    assert broker.now_s < 1.0


def test_what_a_killed_coordinator_left_on_a_broker_blocks_no_start() -> None:
    """The broker was killed, too, before it published the will."""
    broker = Broker(Connected(), status("ready"))
    assert not broker.found()
    assert broker.asked > 1
    assert broker.now_s < ANSWER_S + 1.0


def test_a_broker_that_never_gives_a_link_blocks_no_start() -> None:
    broker = Broker()
    assert not broker.found()
    assert broker.asked == 0
    assert broker.now_s < LINK_S + 1.0


def test_an_answer_to_somebody_else_is_none() -> None:
    def to_another(_inquiry: Inquiry) -> ControlAnswer:
        return ControlAnswer(federation=FED, operator=ASKS, request=bytes(16), done=True)

    assert not Broker(Connected(), status("ready"), answer=to_another).found()


@pytest.mark.parametrize(
    "events",
    [
        (Connected(), status("lost")),
        (Connected(), status("finished")),
        (Connected(),),
        (Connected(), status("ready", "another"), Incoming("coord", b"rubbish")),
        (Disconnected("connection refused"),),
    ],
)
def test_where_none_has_announced_that_it_serves_none_is_asked(events: tuple[TransportEvent, ...]) -> None:
    broker = Broker(*events, answer=answers)
    assert not broker.found()
    assert broker.asked == 0
    assert broker.now_s < SETTLE_S + 1.0


def test_a_link_that_is_taken_over_again_and_again_is_told_once_a_minute_with_a_remedy(pictures: Path) -> None:
    said = Notes()
    server = fleets.Run(fleets.config(pictures), observer=said).server
    said.lines.clear()
    for turn in range(100):
        server.handle(Disconnected("another client", taken_over=True), turn * LINK_TOLD_S / 99)
        server.handle(Connected(), turn * LINK_TOLD_S / 99)
    assert len(said.lines) == 2
    assert all(server.spec.federation in line for line in said.lines)
    server.handle(Disconnected("the broker went away"), LINK_TOLD_S)
    assert len(said.lines) == 3
    assert server.spec.federation not in said.lines[-1]
