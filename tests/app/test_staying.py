"""An agent that stays: after the end of a run it waits, says so, and joins the next one; status() answers what and why."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import federated_apps as apps
import pytest

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.device import standing
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.device.standing import AgentStanding
from edge_sdk.errors import Refused, RunFailed, StoreError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.mqtt.transport import MqttTransport


class Clock:
    now_s = 1_772_402_400.0

    def __call__(self) -> float:
        return self.now_s


class Waiting(threading.Event):
    """An event that is never set, and notes how long was waited for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self._clock.now_s += timeout or 0.0
        return False


def followed(*, stays: bool = True) -> tuple[AgentStanding, Waiting, Clock, list[str]]:
    clock, news = Clock(), list[str]()
    stopping = Waiting(clock)
    return AgentStanding(stays=stays, news=news.append, stopping=stopping, wall=clock), stopping, clock, news


def at(phase: SessionPhase, *, linked: bool = True, round_: int = 0) -> SessionState:
    return SessionState(phase=phase, linked=linked, exchange_id=ExchangeId(round_, 0))


def test_it_waits_longer_after_each_end_until_a_coordinator_accepts_it() -> None:
    found, stopping, _, news = followed()
    for _ in range(9):
        assert found.ended(None, asked=False)
    assert stopping.waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert news[0] == "the run is complete; asks for the next run in 1 min"
    found.look(at(SessionPhase.IDLE), "")
    assert found.ended(RunFailed("the coordinator ended the run: x"), asked=False)
    assert stopping.waits[-1] == 60


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RunFailed("no quorum"), True),
        (Refused("roster", "not on the roster", "add it"), True),
        (Refused("drained", "taken out", "undo"), True),
        (Refused("identity", "two of them", "another id"), False),
        (Refused("revoked", "revoked", "a new claim"), False),
        (StoreError("the disk is gone"), False),
    ],
)
def test_it_waits_for_what_may_pass(error: Exception, passes: bool) -> None:
    found, _, _, _ = followed()
    assert found.ended(error, asked=False) is passes
    if not passes:
        assert (found.status(SessionState()).state, found.status(SessionState()).why) == ("off", str(error))


def test_one_that_does_not_stay_says_that_it_is_off() -> None:
    found, stopping, _, news = followed(stays=False)
    assert not found.ended(None, asked=False)
    assert not stopping.waits
    assert news == [
        "the run is complete; this agent is off: start() joins the next run, and stay=True or --stay automatically"
    ]
    assert found.status(SessionState()).next == "start() joins the next run"


def test_status_says_what_since_when_why_and_what_next() -> None:
    found, _, clock, _ = followed()
    assert found.status(SessionState()).to_json() == {
        "state": "off",
        "since": "2026-03-01T22:00:00Z",
        "why": "it was not started",
        "next": "start() joins the next run",
        "round": 0,
        "news": "",
        "accuracy": {},
        "by_class": {},
    }
    clock.now_s += 60
    found.look(at(SessionPhase.IDLE, linked=False), "")
    assert found.status(SessionState()).state == "connecting"
    found.look(at(SessionPhase.WORKING), "the battery is low")
    clock.now_s += 60
    found.look(at(SessionPhase.WORKING), "the battery is low")
    status = found.status(at(SessionPhase.WORKING, round_=4))
    assert (status.state, status.why, status.round) == ("paused", "the battery is low", 5)
    assert status.since == "2026-03-01T22:01:00Z"
    found.look(at(SessionPhase.IDLE), "")
    assert found.status(SessionState()).next == "the coordinator opens the next round"
    assert json.loads(json.dumps(found.status(SessionState(), "connected").to_json()))["news"] == "connected"


def test_every_state_of_a_session_has_a_word_and_says_what_comes_next() -> None:
    live = [phase for phase in SessionPhase if phase not in (SessionPhase.DONE, SessionPhase.REFUSED)]
    for phase in live:
        found, _, _, _ = followed()
        found.look(at(phase), "")
        assert found.status(SessionState()).next == standing.NEXT[found.status(SessionState()).state]


def served(url: str, ledger: Path, *, rounds: int = 2) -> Server:
    """A coordinator of the federation `app` for one device, served until its run is over."""
    method = load_method("local")()
    spec = FederationSpec(
        federation="app",
        method="local",
        contract=method.digest,
        classes=apps.CLASSES,
        rounds=rounds,
        train=TrainSpec(local_steps=1),
    )
    policy = RoundPolicy(expected=1, quorum=1, rounds=rounds, exchanges=1, retry_s=0.5)
    transport = MqttTransport(url, "coordinator-app", fresh=True, manual_ack=True, seed=1)
    found = Server(spec=spec, policy=policy, method=method, transport=transport, ledger=Ledger(ledger))
    found.run()
    return found


def test_an_agent_joins_the_next_run_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs, one after the other, over a broker; nobody touches the agent in between."""
    monkeypatch.setattr(standing, "FIRST_S", 0.05)
    news, reports = list[str](), list[int]()
    samples = apps.samples_of()
    with EmbeddedBroker() as broker:
        agent = edge_sdk.Agent(
            federation="app",
            broker=broker.url,
            identity="attic",
            model=edge_sdk.NumpyModel(apps.CLASSES, (1, 1, 8), seed=1),
            data=edge_sdk.LocalData(train=samples, test=samples),
            state=tmp_path / "attic",
            stay=True,
        )
        agent.on_link(news.append)
        agent.on_round(lambda report: reports.append(report.round))
        agent.start()
        try:
            for run in ("first", "second"):
                assert served(broker.url, tmp_path / f"{run}.db").rounds.phase is RoundPhase.DONE
                assert agent.running
            assert agent.error is None
            assert reports.count(0) == 2
            with pytest.raises(edge_sdk.UsageError, match="is running"):
                agent.start()
        finally:
            agent.stop()
        assert not agent.running
        assert agent.status().why == "it was stopped"
        assert any(line.startswith("the run is complete; asks for the next run") for line in news)
