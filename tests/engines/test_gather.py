"""What is computed at one moment: begun at once, left alone until it is done, told in the order in which it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from edge_sdk.agent import Agent
from edge_sdk.device.meter import Meter
from edge_sim import gather
from edge_sim.engine import Answer, Asked, Exact
from edge_sim.gather import Computation, Gatherer


class Asking:
    """In place of an agent: asks for as many things as it is told, and keeps the answers."""

    def __init__(self, requests: int) -> None:
        self.begun, self.left, self.answers, self.meter = 1, requests, list[Answer](), Meter()
        self.pending_request: Asked | None = None

    @property
    def computing(self) -> bool:
        return self.left >= 0

    def work_slice(self, answer: Answer = None) -> bool:
        self.answers.append(answer)
        self.left -= 1
        self.pending_request = cast("Asked", object())
        return self.left < 0


class Backwards(Exact):
    """Answers the last request first, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def collect(self) -> list[tuple[Asked, Answer]]:
        self.most = max(self.most, len(self._begun))
        return [(self._begun.pop(), "answer")] if self._begun else []

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        raise NotImplementedError


def computation(agent: Asking, told: list[Asking]) -> Computation:
    return Computation(cast("Agent", agent), lambda: told.append(agent))


def test_they_are_told_in_the_order_in_which_they_were_added() -> None:
    gatherer, told = Gatherer(Backwards()), list[Any]()
    agents = [Asking(requests) for requests in (3, 0, 1, 2)]
    for agent in agents:
        gatherer.add(computation(agent, told))
    assert told == []
    gatherer.compute()
    assert told == agents
    assert [agent.answers for agent in agents] == [[None] + ["answer"] * requests for requests in (3, 0, 1, 2)]


def test_a_device_is_settled_before_anything_happens_to_it() -> None:
    engine, told = Backwards(), list[Any]()
    gatherer = Gatherer(engine)
    busy, idle = Asking(2), Asking(0)
    gatherer.add(computation(busy, told))
    gatherer.add(computation(idle, told))
    gatherer.settle(cast("Agent", idle))
    assert busy.computing
    gatherer.settle(cast("Agent", busy))
    assert not busy.computing
    assert told == [busy, idle]
    assert engine.collect() == []


def test_an_engine_has_only_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "AT_ONCE", 3)
    engine, told = Backwards(), list[Any]()
    gatherer = Gatherer(engine)
    for _ in range(10):
        gatherer.add(computation(Asking(2), told))
    gatherer.compute()
    assert (len(told), engine.most) == (10, 3)
