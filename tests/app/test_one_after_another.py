"""The same devices in one federation after another, on one broker, each started anew with its folder of states."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import CoordinatorStatus, FederationSpec, TrainSpec
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

CLASSES, WIDTH, ROUNDS = 4, 8, 2
DEVICES = ("attic", "cellar")
RUNS = (("faces", "fedproto"), ("voices", "local"), ("faces", "fedproto"))
"""The last one is another run of the first federation."""


def server(url: str, federation: str, name: str, ledger: Path) -> Server:
    method = load_method(name)()
    spec = FederationSpec(
        federation=federation,
        method=name,
        contract=method.digest,
        classes=CLASSES,
        rounds=ROUNDS,
        feature_dim=WIDTH,
        train=TrainSpec(local_steps=1),
    )
    policy = RoundPolicy(expected=2, quorum=2, rounds=ROUNDS, exchanges=1, retry_s=0.5)
    transport = MqttTransport(url, f"coordinator-{federation}", manual_ack=True, seed=1)
    return Server(spec=spec, policy=policy, method=method, transport=transport, ledger=Ledger(ledger))


def agent(url: str, federation: str, device: str, state: Path) -> edge_sdk.Agent:
    y = np.arange(16) % CLASSES
    samples = edge_sdk.Samples(np.eye(WIDTH, dtype=np.float32)[y], y)
    return edge_sdk.Agent(
        federation=federation,
        broker=url,
        identity=device,
        model=edge_sdk.NumpyModel(CLASSES, (1, 1, WIDTH), seed=1),
        data=edge_sdk.LocalData(train=samples, test=samples),
        state=state / device,
    )


def until_ready(url: str, federation: str) -> None:
    """Wait until the coordinator has announced itself."""
    watcher = MqttTransport(url, "watcher", clean=True, seed=1)
    with closing(watcher):
        watcher.connect([topics.coordinator_status(federation)])
        status = None
        while not (isinstance(status, CoordinatorStatus) and status.state == "ready"):
            event = watcher.poll(10.0)
            assert event is not None
            status = codec.decode(event.frame).message if isinstance(event, Incoming) else None


@pytest.mark.broker
def test_one_federation_after_another_on_one_broker_with_the_same_devices(tmp_path: Path) -> None:
    with EmbeddedBroker("amqtt") as broker:
        for number, (federation, method) in enumerate(RUNS):
            run = server(broker.url, federation, method, tmp_path / f"ledger-{number}.db")
            thread = threading.Thread(target=run.run, daemon=True)
            agents = [agent(broker.url, federation, device, tmp_path) for device in DEVICES]
            thread.start()
            until_ready(broker.url, federation)  # until then the last run's end is what the broker keeps for devices
            for each in agents:
                each.start()
            thread.join(30)
            assert run.rounds.phase is RoundPhase.DONE
            assert run.record.rounds_done == dict.fromkeys(DEVICES, ROUNDS)
            for each in agents:
                each.stop()
                assert each.error is None
    assert {path.name for path in (tmp_path / "attic").glob("*.db")} == {"faces.db", "voices.db"}
