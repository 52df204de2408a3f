"""A broker, coordinators and devices in one thread, in which time passes only where a test says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import FederationSpec, Message, TrainSpec
from edge_sdk.transport.memory.hub import Hub

CLASSES, ROUNDS = 4, 2
STATUS = topics.coordinator_status("app")


class World:
    """A broker, one coordinator after the other, and devices; time passes only where a test says so."""

    def __init__(
        self,
        folder: Path,
        devices: int = 1,
        quorum: int | None = None,
        observer: RunObserver | None = None,
        roster: tuple[str, ...] = (),
        **policy: float,
    ) -> None:
        self._observer, self._policy, self._roster = observer, policy, roster
        self.hub, self._folder, self.now_s = Hub(), folder, 0.0
        self._devices, self._quorum, self.runs = devices, quorum or devices, 0
        self.sent: list[tuple[str, Message]] = []
        self.frames: list[tuple[str, bytes]] = []
        publish = self.hub.publish

        def listen(sender, topic: str, frame: Frame, *, retain: bool) -> None:
            with contextlib.suppress(RemoteProtocolError):
                self.sent.append((topic, codec.decode(bytes(frame)).message))
                self.frames.append((topic, bytes(frame)))
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
        policy = RoundPolicy(expected=self._devices, quorum=self._quorum, rounds=ROUNDS, exchanges=1, **self._policy)
        self.server = Server(
            spec=spec,
            policy=policy,
            roster=self._roster,
            method=method,
            transport=self.hub.link("coordinator"),
            ledger=Ledger(self._folder / f"ledger-{self.runs}.db"),
            observer=self._observer,
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
            agent.tick(self.now_s)
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
