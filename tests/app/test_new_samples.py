"""Rounds that devices join only with new samples: who declines, when it takes part again, and what a skip says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, agent_of, samples_of, wait_for

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.messages import FOREVER, FederationSpec, TrainSpec
from edge_sdk.transport.memory.hub import Hub

WANTED = 8


class Notes(RunObserver):
    """Keeps what a coordinator says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def noted(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr("edge_sdk.device.refused_assigns.COUNT_EVERY_S", 0.05)


@pytest.fixture
def server(serve: Callable[..., threading.Thread]) -> Any:
    stop = threading.Event()

    def begin(hub: Hub, *, devices: int = 1, quorum: int = 1) -> Server:
        method = load_method("local")()
        spec = FederationSpec(
            federation="app",
            method="local",
            contract=method.digest,
            classes=CLASSES,
            rounds=FOREVER,
            train=TrainSpec(local_steps=2),
            min_new_samples=WANTED,
        )
        policy = RoundPolicy(
            expected=devices,
            quorum=quorum,
            rounds=FOREVER,
            exchanges=1,
            retry_s=0.2,
            deadline_s=0.5,
            join_grace_s=0.1,
            forever=True,
            paced=True,
        )
        link = hub.link("coordinator")
        found = Server(spec=spec, policy=policy, method=method, transport=link, ledger=Ledger(None), observer=Notes())
        serve(found, lambda: "the test is over" if stop.is_set() else "")
        return found

    yield begin
    stop.set()


def filled(store: edge_sdk.SampleStore, count: int, seed: int) -> None:
    samples = samples_of(seed)
    for x, y in zip(samples.x[:count], samples.y[:count], strict=True):
        store.observe(x, int(y))


def stored(path=None) -> edge_sdk.SampleStore:
    return edge_sdk.SampleStore(path, classes=CLASSES, split=(1.0, 0.0, 0.0))


def test_a_device_trains_again_once_enough_samples_have_come(server) -> None:
    hub, store, news = Hub(), stored(), list[str]()
    filled(store, WANTED, 0)
    found = server(hub)
    agent = agent_of(hub, "one", data=store)
    agent.on_link(news.append)
    agent.start()
    wait_for(lambda: found.record.skips >= 1, 30.0)
    assert found.record.done == 1
    reason = found.record.last_skip["reason"]
    assert "declined: one" in reason
    assert "one: 0 of the 8 new samples that federation.min_new_samples asks for" in reason
    assert agent.status().why == "0 of the 8 new samples that federation.min_new_samples asks for"
    filled(store, WANTED - 1, 1)
    wait_for(lambda: "7 of the 8" in agent.status().why)
    skips = found.record.skips
    filled(store, WANTED, 1)  # observes seven of them again
    wait_for(lambda: found.record.done == 2, 30.0)
    wait_for(lambda: "0 of the 8" in agent.status().why, 30.0)
    assert found.record.skips <= skips + 1
    assert sum("one declined" in line for line in found.observer.lines) == 1
    assert "training resumes" in news
    agent.stop()


def test_others_go_on_without_it(server) -> None:
    hub, stores = Hub(), [stored(), stored()]
    found = server(hub, devices=2)
    for number, store in enumerate(stores):
        filled(store, WANTED, number)
    agents = [agent_of(hub, name, data=store) for name, store in zip(("a", "b"), stores, strict=True)]
    for agent in agents:
        agent.start()
    wait_for(lambda: all(found.record.contributed[name] == 1 for name in "ab"), 30.0)
    for seed in range(2, 5):
        filled(stores[0], WANTED, seed)
        wait_for(lambda seed=seed: found.record.contributed["a"] == seed, 30.0)
    assert found.record.contributed["b"] == 1
    for agent in agents:
        agent.stop()


def test_a_restart_does_not_count_what_was_trained_on(server, tmp_path) -> None:
    hub = Hub()
    found = server(hub)
    for start in range(2):
        store = stored(tmp_path / "samples.db")
        filled(store, WANTED if start == 0 else 3, start)
        agent = agent_of(hub, "one", data=store, state=tmp_path / "state")
        agent.start()
        wait_for(lambda: found.record.done == 1, 30.0)
        wanted = "0 of the 8" if start == 0 else "3 of the 8"
        wait_for(lambda wanted=wanted, agent=agent: wanted in agent.status().why, 30.0)
        agent.stop()
        store.close()
    assert found.record.done == 1


def test_data_that_do_not_change_are_said_to_both(server) -> None:
    hub = Hub()
    found = server(hub)
    agent = agent_of(hub, "fixed")
    agent.start()
    wait_for(lambda: found.record.skips >= 1, 30.0)
    line = "its data do not change: give its Agent a SampleStore"
    assert line in agent.status().why
    assert sum(line in each for each in found.observer.lines if "fixed declined" in each) == 1
    agent.stop()


def test_new_samples_are_those_that_no_earlier_snapshot_has() -> None:
    store = stored()
    assert store.new_since(b"") == 0
    filled(store, 5, 0)
    first = store.take_snapshot()
    assert (store.new_since(b""), store.new_since(first.id), store.new_since(b"strange:3")) == (5, 0, 5)
    again = store.observe(samples_of(0).x[0], int(samples_of(0).y[0]))
    assert store.new_since(first.id) == 0
    store.label(again, (int(samples_of(0).y[0]) + 1) % CLASSES)
    store.observe(np.full((8,), 9.0, np.float32))  # has no label yet
    assert store.new_since(first.id) == 1
