"""Agents with a policy beside a coordinator: pauses, declines, and what the coordinator counts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from federated_apps import CLASSES, agent_of, federation

import edge_sdk
from coordinator.rounds import RoundPhase
from coordinator.serving.outcome import device_result, run_result
from coordinator.serving.server import Server
from edge_sdk.errors import UsageError
from edge_sdk.policy.sensors import FakeSensors
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Assign, Message, Welcome
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub

COOL = edge_sdk.Policy(max_temperature_c=80)


class Deliberate(edge_sdk.NumpyModel):
    """A model whose batches take five milliseconds, and that knows when the last one ended."""

    ended_s = 0.0

    def fit(self, *args: object, **kwargs: object) -> object:
        time.sleep(0.005)
        try:
            return super().fit(*args, **kwargs)
        finally:
            self.ended_s = time.monotonic()


def device(hub: Hub, name: str, **other: Any) -> edge_sdk.Agent:
    return agent_of(hub, name, model=Deliberate(CLASSES, (1, 1, 8), seed=1), **other)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    """Training goes on a tenth of a second after its conditions hold again, in place of two."""
    monkeypatch.setattr("edge_sdk.policy.gate.SETTLE_S", 0.1)
    monkeypatch.setattr("edge_sdk.policy.gate.CHECK_AGAIN_S", 0.05)


@pytest.fixture
def serve() -> Iterator[Callable[[Server], None]]:
    threads: list[threading.Thread] = []

    def begin(server: Server) -> None:
        threads.append(threading.Thread(target=server.run, daemon=True))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.005)


def test_the_round_goes_on_without_a_hot_device_which_takes_part_later(serve) -> None:
    hub, sensors = Hub(), FakeSensors()
    server = federation(hub, devices=2, rounds=20, local_steps=10)
    serve(server)
    sensors.celsius = 84.0
    agents = [device(hub, "cool"), device(hub, "hot", policy=COOL, sensors=sensors)]
    for agent in agents:
        agent.start()
    until(lambda: len(server.record.rounds) >= 2)
    assert agents[1].meter.steps == 0
    assert agents[1].predict(np.zeros((1, 8), np.float32)).shape == (1, CLASSES)
    assert server.record.declining == {"hot": ("temperature", "temperature 84 C above 80 C")}
    sensors.celsius = 60.0
    until(lambda: server.record.contributed["hot"] > 0)
    until(lambda: not any(agent.running for agent in agents))
    assert server.rounds.phase is RoundPhase.DONE
    assert server.record.declined["hot"]["temperature"] >= 2
    assert server.record.sums["silent"].total() == 0
    rounds = server.record.rounds
    assert sum(entry.declined.get("temperature", 0) for entry in rounds) == server.record.declined["hot"].total()
    result = run_result(server, tuple(device_result(server, name) for name in ("cool", "hot")), "hub", {})
    assert result.declined() == {"temperature": server.record.declined["hot"]["temperature"]}


def test_a_pause_within_an_exchange_keeps_what_was_computed_and_predict_answers(serve) -> None:
    hub, sensors = Hub(), FakeSensors()
    server = federation(hub, devices=1, rounds=1, local_steps=100)
    serve(server)
    agent = device(hub, "left", policy=COOL, sensors=sensors)
    news: list[str] = []
    agent.on_link(news.append)
    agent.start()
    until(lambda: agent.meter.steps >= 10)
    sensors.celsius = 90.0
    until(lambda: any("84" in line or "90 C" in line for line in news))
    steps = agent.meter.steps
    for _ in range(20):
        agent.predict(np.zeros((1, 8), np.float32))
        time.sleep(0.005)
    assert agent.meter.steps == steps
    sensors.celsius = 50.0
    until(lambda: not agent.running)
    assert server.rounds.phase is RoundPhase.DONE
    assert agent.meter.steps == 100  # none was computed twice
    assert agent.begun == 2  # and the closing exchange


def test_a_round_s_time_budget_is_declined_for_that_round_alone(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=2, local_steps=60)
    serve(server)
    agents = [device(hub, "free"), device(hub, "thrifty", policy=edge_sdk.Policy(round_time_s=0.02))]
    for agent in agents:
        agent.start()
    until(lambda: not any(agent.running for agent in agents))
    assert server.rounds.phase is RoundPhase.DONE
    assert server.record.declined == {"thrifty": {"time-budget": 2}}


def test_joules_and_seconds_of_training_reach_the_report(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=2, local_steps=20)
    serve(server)
    meter = edge_sdk.PowerMeter(watts=lambda: 5.0)
    agents = [
        device(hub, "metered", policy=edge_sdk.Policy(), meter=meter, sensors=FakeSensors()),
        device(hub, "profiled", policy=edge_sdk.Policy(), sensors=FakeSensors(), board="rpi4"),
    ]
    for agent in agents:
        agent.start()
    until(lambda: not any(agent.running for agent in agents))
    metered, profiled = (device_result(server, name) for name in ("metered", "profiled"))
    assert (metered.joules_source, profiled.joules_source) == ("measured", "profile")
    assert metered.busy_s >= 2 * 20 * 0.005
    assert metered.energy_j == pytest.approx(5.0 * metered.busy_s, rel=0.5)
    assert profiled.energy_j > 0
    assert server.record.temperature_c == {"metered": 40.0, "profiled": 40.0}
    in_rounds = sum(entry.device_j for entry in server.record.rounds)
    assert 0 < in_rounds <= metered.energy_j + profiled.energy_j


def test_an_owner_s_pause_is_declined_too(serve) -> None:
    hub = Hub()
    server = federation(hub, devices=2, rounds=3, local_steps=2)
    serve(server)
    agents = [device(hub, "left"), device(hub, "right")]
    agents[1].pause()
    for agent in agents:
        agent.start()
    until(lambda: len(server.record.rounds) == 3)
    assert server.record.declined == {"right": {"paused": 3}}
    until(lambda: not any(agent.running for agent in agents))


def test_an_exchange_that_was_never_begun_is_replaced_without_computing_the_round_before_again(tmp_path) -> None:
    agent = device(Hub(), "left", state=tmp_path)
    agent.connect()
    server = federation(Hub(), devices=1, rounds=5, local_steps=7)
    address = {"federation": "app", "device": "left"}

    sequence = itertools.count(1)

    def hear(message: Message) -> None:
        agent.handle(Incoming("", codec.encode(message, codec.Stamp(1, next(sequence))), lambda: None), 0.0)

    hear(Welcome(**address, number=0, epoch=1, run=bytes(8), spec=server.spec))
    hear(Assign(**address, round=0, exchange=0))
    while not agent.work_slice():
        pass
    agent.finish_work(0.0)
    assert agent.meter.steps == 7
    for round_ in (1, 2, 3):
        hear(Assign(**address, round=round_, exchange=0))
    assert agent.meter.steps == 7
    while not agent.work_slice():
        pass
    assert agent.meter.steps == 14
    agent.store.close()


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="policy: found dict"):
        device(Hub(), "left", policy={"nice": 3})
