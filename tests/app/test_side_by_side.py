"""Several federations on one broker, and one app that takes part in two of them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.mqtt.transport import MqttTransport

CLASSES, WIDTH, ROUNDS = 4, 8, 4
METHODS = {"faces": "fedproto", "voices": "fedssa"}
MEMBERS = {"faces": ("kitchen", "garage"), "voices": ("kitchen", "attic")}


def _server(url: str, name: str) -> Server:
    method = load_method(METHODS[name])()
    spec = FederationSpec(
        federation=name,
        method=METHODS[name],
        contract=method.digest,
        classes=CLASSES,
        rounds=ROUNDS,
        feature_dim=WIDTH,
        train=TrainSpec(local_steps=3, learning_rate=0.05),
    )
    policy = RoundPolicy(expected=2, quorum=2, rounds=ROUNDS, exchanges=1, retry_s=0.5)
    transport = MqttTransport(url, f"coordinator-{name}", manual_ack=True, seed=len(name))
    return Server(spec=spec, policy=policy, method=method, transport=transport, ledger=Ledger(None))


def _agent(url: str, federation: str, device: str) -> edge_sdk.Agent:
    rng = np.random.default_rng(len(device))
    y = np.arange(64) % CLASSES
    x = (rng.normal(size=(64, WIDTH)) + 3 * np.eye(WIDTH)[y]).astype(np.float32)
    samples = edge_sdk.Samples(x, y)
    model = edge_sdk.NumpyModel(CLASSES, (1, 1, WIDTH), seed=len(federation))
    data = edge_sdk.LocalData(train=samples, test=samples)
    return edge_sdk.Agent(federation=federation, broker=url, identity=device, model=model, data=data)


@pytest.mark.broker
def test_two_federations_share_a_broker_and_an_app() -> None:
    with EmbeddedBroker("amqtt") as broker:
        servers = {name: _server(broker.url, name) for name in METHODS}
        threads = [threading.Thread(target=server.run, daemon=True) for server in servers.values()]
        agents = [_agent(broker.url, name, device) for name, devices in MEMBERS.items() for device in devices]
        for each in (*threads, *agents):
            each.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        end_s = time.monotonic() + 5
        while any(agent.running for agent in agents) and time.monotonic() < end_s:
            time.sleep(0.01)
    for name, server in servers.items():
        assert server.rounds.phase is RoundPhase.DONE
        assert server.record.rounds_done == dict.fromkeys(MEMBERS[name], ROUNDS)
        assert set(server.record.refused_frames) <= set(MEMBERS[name])
        assert {kind for kinds in server.record.refused_frames.values() for kind in kinds} <= {"duplicate", "stale"}
    assert [agent.error for agent in agents] == [None] * 4
