"""What a coordinator makes of statuses that decline: old ones, repeated ones, and those of strangers."""

from __future__ import annotations

import numpy as np
import pytest

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import DeviceStatus, FederationSpec
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub


class Scene:
    """A coordinator and a device with a store that says how often it was started, without threads."""

    def __init__(self) -> None:
        self.hub = Hub()
        method = load_method("local")()
        spec = FederationSpec(federation="app", method="local", contract=method.digest, classes=2, rounds=9)
        policy = RoundPolicy(expected=2, quorum=1, rounds=9, exchanges=1)
        self.server = Server(
            spec=spec, policy=policy, method=method, transport=self.hub.link("coordinator"), ledger=Ledger(None)
        )
        self.server.connect()
        self.pump()
        self.sequence = 1000

    def join(self, name: str) -> None:
        part = edge_sdk.Samples(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1]))
        agent = edge_sdk.Agent(
            federation="app",
            broker=self.hub.link(name),
            identity=name,
            model=edge_sdk.NumpyModel(2, (1, 1, 4), seed=0),
            data=edge_sdk.LocalData(train=part),
        )
        agent.connect()
        while (event := agent.transport.poll(0.0)) is not None:
            agent.handle(event, 0.0)
        self.pump()

    def pump(self) -> None:
        while (event := self.server.transport.poll(0.0)) is not None:
            self.server.handle(event, 0.0)

    def status(self, device: str, declines: str | None, *, boot: int = 1, sequence: int | None = None) -> None:
        self.sequence += 1
        status = DeviceStatus(federation="app", device=device, state="ready", boot=boot, declines=declines)
        frame = codec.encode(status, Stamp(boot, sequence or self.sequence))
        self.server.handle(Incoming(topics.device_status("app", device), frame, lambda: None), 0.0)

    @property
    def declined(self) -> set[str]:
        assert set(self.server.record.declining) == self.server.rounds.declined
        return set(self.server.rounds.declined)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.join("a")
    made.join("b")
    return made


def test_a_device_declines_and_takes_it_back(scene) -> None:
    scene.status("a", "charging")
    assert scene.declined == {"a"}
    scene.status("a", None)
    assert scene.declined == set()


def test_a_status_that_was_overtaken_changes_nothing(scene) -> None:
    scene.status("a", "charging", sequence=2000)
    scene.status("a", None, sequence=1999)
    assert scene.declined == {"a"}
    scene.status("a", None, sequence=2001)
    assert scene.declined == set()


def test_a_retained_status_of_an_earlier_start_changes_nothing(scene) -> None:
    scene.status("b", "charging", boot=0)
    assert scene.declined == set()


def test_a_status_of_a_new_start_comes_before_its_hello(scene) -> None:
    scene.status("b", "charging", boot=1)
    scene.status("b", None, boot=2, sequence=1)
    assert scene.declined == set()


def test_a_stranger_changes_nothing(scene) -> None:
    scene.status("nobody", "charging")
    assert scene.declined == set()
