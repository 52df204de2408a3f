"""A second run under one name: nothing of the first one ends, moves or counts for anybody in the second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.device.session import SessionPhase
from edge_sdk.errors import RunFailed
from edge_sdk.methods.registry import load_method
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, FederationSpec, Message, Receipt, TrainSpec, Upload
from edge_sdk.transport.base import Connected, Disconnected
from edge_sdk.transport.memory.hub import Hub

CLASSES, ROUNDS = 4, 2
STATUS = topics.coordinator_status("app")


class World:
    """A broker, one coordinator after the other, and devices; time passes only where a test says so."""

    def __init__(self, folder: Path, devices: int = 1, quorum: int | None = None) -> None:
        self.hub, self._folder, self.now_s = Hub(), folder, 0.0
        self._devices, self._quorum, self.runs = devices, quorum or devices, 0
        self.sent: list[tuple[str, Message]] = []
        self.frames: list[tuple[str, bytes]] = []
        publish = self.hub.publish

        def listen(sender, topic: str, frame: bytes, *, retain: bool) -> None:
            self.frames.append((topic, frame))
            self.sent.append((topic, codec.decode(frame).message))
            publish(sender, topic, frame, retain=retain)

        self.hub.publish = listen  # type: ignore[method-assign]  # what a tap is
        self.agents: dict[str, edge_sdk.Agent] = {}
        self.server = self.begin()

    def begin(self) -> Server:
        """A coordinator with a new run folder; the one before has vanished."""
        self.runs += 1
        method = load_method("local")()
        spec = FederationSpec(
            federation="app",
            method="local",
            contract=method.digest,
            classes=CLASSES,
            rounds=ROUNDS,
            train=TrainSpec(local_steps=1),
        )
        policy = RoundPolicy(expected=self._devices, quorum=self._quorum, rounds=ROUNDS, exchanges=1)
        self.server = Server(
            spec=spec,
            policy=policy,
            method=method,
            transport=self.hub.link("coordinator"),
            ledger=Ledger(self._folder / f"ledger-{self.runs}.db"),
            clock=lambda: self.now_s,
        )
        self.server.connect()
        return self.server

    def device(self, name: str = "attic") -> edge_sdk.Agent:
        y = np.arange(16) % CLASSES
        samples = edge_sdk.Samples(np.eye(8, dtype=np.float32)[y], y)
        agent = edge_sdk.Agent(
            federation="app",
            broker=self.hub.link(name),
            identity=name,
            model=edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1),
            data=edge_sdk.LocalData(train=samples),
        )
        self.agents[name] = agent
        agent.connect()
        return agent

    def turn(self, *, computing: bool = True, hearing: bool = True) -> None:
        """Everybody handles what has come; devices compute if they may, and hear if they are told to."""
        while (event := self.server.transport.poll(0.0)) is not None:
            self.server.handle(event, self.now_s)
        self.server.flush(self.now_s)
        self.server.tick(self.now_s)
        for agent in self.agents.values():
            while hearing and (event := agent.transport.poll(0.0)) is not None:
                agent.handle(event, self.now_s)
            while computing and agent.computing:
                if agent.work_slice():
                    agent.finish_work(self.now_s)

    def until(self, condition: Callable[[], bool], *, computing: bool = True) -> None:
        for _ in range(20):
            if condition():
                return
            self.turn(computing=computing)
        raise AssertionError("nothing happened")

    def publish(self, topic: str, frame: bytes) -> None:
        link = self.hub.link("somebody")
        link.connect([])
        link.send(topic, frame, retain=topic == STATUS)

    def last(self, kind: type[Message]) -> tuple[str, bytes]:
        """The last frame of this kind, and its topic."""
        return next(
            (topic, frame)
            for (topic, frame), (_, message) in zip(reversed(self.frames), reversed(self.sent), strict=True)
            if isinstance(message, kind)
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_end_of_an_earlier_run_ends_no_device_of_a_later_one(world: World) -> None:
    first = world.device("attic")
    world.until(lambda: first.over)
    first.raise_if_failed()
    _, finished = world.last(CoordinatorStatus)
    world.agents.clear()
    world.begin()
    second = world.device("cellar")
    world.until(lambda: second.session.phase is SessionPhase.WORKING, computing=False)
    world.publish(STATUS, finished)  # an attacker, or a broker that was set back
    world.turn(computing=False)
    assert not second.over
    world.until(lambda: second.over)
    second.raise_if_failed()
    assert world.server.record.rounds_done["cellar"] == ROUNDS


def test_living_devices_of_an_earlier_run_join_the_next_one_at_once(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.session.phase is SessionPhase.WORKING, computing=False)
    first = world.server.ledger.run
    world.begin()  # no clock passes
    world.until(lambda: agent.over)
    agent.raise_if_failed()
    assert world.server.ledger.run != first
    assert world.server.rounds.phase is RoundPhase.DONE
    assert world.server.ledger.epoch == 1


def test_an_upload_to_an_earlier_run_never_counts_in_a_later_one(world: World) -> None:
    agent = world.device()
    world.until(lambda: any(isinstance(message, Upload) for _, message in world.sent))
    world.begin()
    agent.handle(Connected(), world.now_s)  # after a reconnect: it says Hello, and sends again what has no receipt
    world.turn(hearing=False)
    assert world.server.rounds.phase is RoundPhase.COLLECTING
    assert world.server.rounds.place == (0, 0)
    assert not world.server.rounds.folded
    assert world.server.record.refused_frames == {"attic": {"replayed": 1}}


def test_a_stranger_that_uploads_is_asked_for_a_hello_and_joins(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.session.phase is SessionPhase.WORKING, computing=False)
    world.begin()
    world.turn(computing=False, hearing=False)  # the device hears nothing of the new coordinator
    for event in iter(lambda: agent.transport.poll(0.0), None):
        del event
    world.turn(hearing=False)
    world.turn(hearing=False, computing=False)  # its upload comes as that of a stranger
    asked = world.sent[-1]
    assert asked[0] == topics.down("app", "attic", "join")
    assert isinstance(asked[1], CoordinatorStatus)
    assert (asked[1].greet, asked[1].run) == (True, world.server.ledger.run)
    assert world.server.record.refused_frames == {"attic": {"stranger": 1}}
    world.until(lambda: agent.over)
    agent.raise_if_failed()


def test_what_is_of_another_run_moves_no_device(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.session.phase is SessionPhase.WORKING, computing=False)
    other, epoch = bytes(16), world.server.ledger.epoch
    later = Assign(federation="app", device="attic", round=1, exchange=0, run=other)
    closing = Receipt(federation="app", device="attic", round=0, exchange=0, verdict="accepted", run=other)
    world.publish(topics.down("app", "attic", "task"), codec.encode(later, codec.Stamp(epoch, 99)))
    world.publish(topics.down("app", "attic", "rcpt"), codec.encode(closing, codec.Stamp(epoch, 99)))
    earlier = Assign(federation="app", device="attic", round=1, exchange=0, run=world.server.ledger.run)
    world.publish(topics.down("app", "attic", "task"), codec.encode(earlier, codec.Stamp(epoch - 1, 99)))
    world.turn(computing=False)
    assert agent.session.exchange_id == (0, 0)
    assert agent.refused_frames == {"replayed": 3}


def test_a_device_without_its_closing_exchange_reports_no_success(tmp_path: Path) -> None:
    world = World(tmp_path, devices=2, quorum=1)
    slow, quick = world.device("attic"), world.device("cellar")
    world.until(lambda: slow.session.exchange_id == (ROUNDS - 1, 0))  # its upload is sent
    del world.agents["attic"]  # it hears and computes nothing for a while
    world.until(lambda: quick.over)
    quick.raise_if_failed()
    world.now_s += 1000.0
    world.until(lambda: world.server.over)
    world.agents["attic"] = slow
    world.turn(computing=False)
    assert slow.over
    with pytest.raises(RunFailed):
        slow.raise_if_failed()


def test_one_that_comes_after_a_failed_run_is_told_why(world: World) -> None:
    agent = world.device()
    world.until(lambda: agent.session.phase is SessionPhase.WORKING, computing=False)
    agent.handle(Disconnected("the link was lost"), world.now_s)
    agent.transport.close()
    for _ in range(10):
        world.now_s += 1000.0
        world.server.tick(world.now_s)
    assert world.server.rounds.phase is RoundPhase.FAILED
    news: list[str] = []
    agent.on_link(news.append)
    agent.connect()
    stranger = world.device("cellar")
    stranger.on_link(news.append)
    world.turn(computing=False)
    with pytest.raises(RunFailed, match="attic"):
        agent.raise_if_failed()
    assert not stranger.over
    assert any("attic" in line for line in news)
