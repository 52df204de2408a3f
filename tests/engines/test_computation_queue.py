"""What is computed at one moment: begun at once, left alone until it is done, told in the order in which it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from edge_sdk.agent import Agent
from edge_sdk.device.training.meter import Meter
from edge_sim.clock import computation_queue
from edge_sim.clock.computation_queue import Computation, ComputationQueue
from edge_sim.engines.base import DeviceAnswer, DeviceRequest, ExactEngine


class Asking:
    """In place of an agent: asks for as many things as it is told, and keeps the answers."""

    def __init__(self, requests: int) -> None:
        self.begun, self.left, self.answers, self.meter = 1, requests, list[DeviceAnswer](), Meter()
        self.pending_request: DeviceRequest | None = None

    @property
    def computing(self) -> bool:
        return self.left >= 0

    def work_slice(self, answer: DeviceAnswer = None) -> bool:
        self.answers.append(answer)
        self.left -= 1
        self.pending_request = cast("DeviceRequest", object())
        return self.left < 0


class Counting(ExactEngine):
    """Answers with a word, and notes how much it was asked at once."""

    most = 0

    def serve(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        self.most = max(self.most, len(asked))
        return ["answer"] * len(asked)


def computation(agent: Asking, told: list[Asking]) -> Computation:
    return Computation(cast("Agent", agent), lambda: told.append(agent))


def test_they_are_told_in_the_order_in_which_they_were_added() -> None:
    queue, told = ComputationQueue(Counting()), list[Any]()
    agents = [Asking(requests) for requests in (3, 0, 1, 2)]
    for agent in agents:
        queue.add(computation(agent, told))
    assert told == []
    queue.compute()
    assert told == agents
    assert [agent.answers for agent in agents] == [[None] + ["answer"] * requests for requests in (3, 0, 1, 2)]


def test_a_device_is_settled_before_anything_happens_to_it() -> None:
    engine, told = Counting(), list[Any]()
    queue = ComputationQueue(engine)
    busy, idle = Asking(2), Asking(0)
    queue.add(computation(busy, told))
    queue.add(computation(idle, told))
    queue.settle(cast("Agent", idle))
    assert busy.computing
    queue.settle(cast("Agent", busy))
    assert not busy.computing
    assert told == [busy, idle]


def test_an_engine_has_only_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation_queue, "AT_ONCE", 3)
    engine, told = Counting(), list[Any]()
    queue = ComputationQueue(engine)
    for _ in range(10):
        queue.add(computation(Asking(2), told))
    queue.compute()
    assert (len(told), engine.most) == (10, 3)
