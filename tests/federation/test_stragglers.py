"""Slow devices: rounds close on the deadline, late uploads are answered, a newer Assign supersedes an older."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest

from coordinator.rounds import RoundPhase
from edge_sdk.agent.agent import Agent
from edge_sdk.methods.fedal import TransferProgress
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, Receipt, Upload, Welcome
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.memory.hub import Hub, MemoryTransport

SLOW = "device-02"
EXCHANGE_S = 3.0
"""How long an exchange takes on the other devices."""
DEADLINE_S = 4.0


def run_with(pictures: Path, compute_s: float, method: str = "fedmd", **federation: object) -> fleets.Run:
    """One device takes `compute_s`, the others three seconds; deadlines come after four."""
    policy = {"quorum": 5, "deadline_s": DEADLINE_S, "retry_s": 50.0, "rounds": 4, **federation}
    run = fleets.Run(fleets.built(pictures, method, **policy))
    for device in run.begun:
        run.slow_down(device, compute_s if device == SLOW else EXCHANGE_S)
    return run


def places(sent: list, kind: type, device: str) -> list[tuple[int, int]]:
    return [(m.round, m.exchange) for m in sent if isinstance(m, kind) and m.device == device]


def verdicts(sent: list, device: str) -> dict[tuple[int, int], str]:
    return {(m.round, m.exchange): m.verdict for m in sent if isinstance(m, Receipt) and m.device == device}


def test_a_round_closes_on_the_deadline(pictures: Path) -> None:
    run = run_with(pictures, 1000.0).finished()
    assert run.result.completed
    contributors = [entry.contributors for entry in run.result.history]
    assert contributors == [5, 5, 5, 5]
    assert {d.id: d.rounds_done for d in run.result.devices}[SLOW] == 0
    assert run.clock.now_s == pytest.approx(DEADLINE_S + 4 * EXCHANGE_S, abs=0.2)


def test_a_late_upload_is_answered_and_counted_stale(pictures: Path) -> None:
    run = run_with(pictures, 5.0)
    sent = run.tap()
    run.finished()
    assert verdicts(sent, SLOW) == {(0, 0): "late", (2, 0): "late"}  # late, away for a round, invited, late again
    assert run.result.updates["stale"] == 2
    assert run.result.updates["refused"] == 0
    assert run.result.completed


def test_a_device_that_shows_up_late_is_invited_again(pictures: Path) -> None:
    run = run_with(pictures, 5.0)
    sent = run.tap()
    run.finished()
    invited = sorted(set(places(sent, Assign, SLOW)))
    assert (0, 0) in invited
    assert (1, 0) not in invited  # it was counted as away when that one opened
    assert (2, 0) in invited


def test_a_mean_that_a_device_is_not_in_comes_marked(pictures: Path) -> None:
    """FedMD: whoever came too late must not take itself out of a mean that it is not in."""
    run = run_with(pictures, 5.0)
    sent = run.tap()
    run.finished()
    marked = {(m.device, m.round) for m in sent if isinstance(m, Assign) and "others" in m.personal}
    assert {device for device, _ in marked} == {SLOW}
    assert all((SLOW, round_) in marked for _, round_ in marked)
    means = {
        (m.round, device): payload.values.tobytes()
        for m in sent
        if isinstance(m, Assign) and m.round == 2
        for device, payload in [("all", m.common["mean"]), *([(SLOW, m.personal["others"])] if m.personal else [])]
    }
    assert len(set(means.values())) == 1


def superseded(pictures: Path, method: str) -> tuple[fleets.Run, list]:
    """The slow device loses its link for a moment, is welcomed back, and so gets an Assign while it still computes."""
    run = run_with(pictures, 20.0, method)
    sent = run.tap()
    run.clock.at(DEADLINE_S + 1.0, lambda: run.hub.drop_link(SLOW, 0.1))
    run.clock.at(DEADLINE_S + 2.0, lambda: run.slow_down(SLOW, EXCHANGE_S))
    return run.finished(), sent


@pytest.mark.parametrize("method", ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)])
def test_a_newer_assign_supersedes(pictures: Path, method: str) -> None:
    run, sent = superseded(pictures, method)
    assert run.result.completed
    uploads = places(sent, Upload, SLOW)
    assert (0, 0) not in uploads  # stopped and discarded
    assert len(uploads) >= 3  # and on it went
    assert set(verdicts(sent, SLOW).values()) == {"accepted"}
    assert run.begun[SLOW] == len(set(uploads)) + 1


@pytest.mark.parametrize("method", ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)])
def test_what_was_superseded_leaves_no_trace(pictures: Path, method: str) -> None:
    """A fresh device that gets only the Assigns that were carried out ends with the same model."""
    run, sent = superseded(pictures, method)
    done = set(places(sent, Upload, SLOW))
    (slow,) = [d for d in run.devices if d.device.kit.id == SLOW]
    kit, public = slow.device.kit, slow.device.public
    fresh = Agent(
        federation="tiny",
        broker=Hub().link(SLOW),
        identity=SLOW,
        model=kit.model(public),
        data=slow.device.data,
        public=public,
    )
    welcome = next(m for m in sent if isinstance(m, Welcome) and m.device == SLOW)
    fresh.participant.handle(Connected(), 0.0)
    fresh.participant.handle(Incoming("", codec.encode(welcome)), 0.0)
    for message in sent:
        if isinstance(message, Assign) and message.device == SLOW and (message.round, message.exchange) in done:
            done.remove((message.round, message.exchange))
            fresh.participant.handle(
                Incoming("", codec.encode(message, codec.Stamp(1, message.round * 100 + message.exchange))), 0.0
            )
            while not fresh.participant.work_slice():
                pass
            fresh.participant.finish_work(0.0)
    assert not done
    assert fresh.participant.context.bench.model.state_bytes() == slow.participant.context.bench.model.state_bytes()


def test_a_superseded_device_runs_the_local_stage_that_it_missed(pictures: Path) -> None:
    """FedAL: it comes back in the middle of a round, and first does what that round began with."""
    pytest.importorskip("torch")
    run, sent = superseded(pictures, "fedal")
    first = places(sent, Upload, SLOW)[0]
    assert first[1] > 0
    (slow,) = [d for d in run.devices if d.device.kit.id == SLOW]
    start = slow.participant.context.store.round_start()
    assert start is not None
    assert storage.deserialise(TransferProgress, start.method).local_rounds == 4


def test_a_run_that_ends_while_a_device_computes_leaves_it_at_its_last_exchange(pictures: Path) -> None:
    run = run_with(pictures, 1000.0)
    (slow,) = [d for d in run.devices if d.device.kit.id == SLOW]
    begun = slow.participant.context.bench.model.state_bytes()
    run.finished()
    assert slow.participant.over
    assert not slow.participant.work.busy
    assert slow.participant.work.begun == 1
    assert slow.participant.context.bench.model.state_bytes() == begun


def test_whoever_missed_the_end_is_told_when_it_asks(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The news that the run is over is lost on the way to a straggler: its next hello is answered with it."""
    run = run_with(pictures, 40.0)
    arrive, lost = MemoryTransport.arrive, []

    def carry(client: MemoryTransport, event: Incoming) -> None:
        if (
            client.client_id == SLOW
            and event.topic.endswith("/coord")
            and run.server.rounds.phase is RoundPhase.DONE
            and not lost
        ):
            lost.append(event.topic)
            return
        arrive(client, event)

    monkeypatch.setattr(MemoryTransport, "arrive", carry)
    run.finished()
    assert lost
    assert run.server.rounds.place == ExchangeId(4, 0)
    assert all(device.participant.over for device in run.devices)


def test_a_device_that_comes_after_the_end_is_told_so(pictures: Path) -> None:
    run = run_with(pictures, EXCHANGE_S, quorum=3)
    sent = run.tap()
    run.power_cut(SLOW, at_s=0.0, for_s=100.0)
    run.finished()
    assert all(device.participant.over for device in run.devices)
    assert [m.state for m in sent if isinstance(m, CoordinatorStatus)][:2] == ["ready", "finished"]
    assert run.clock.now_s == pytest.approx(100.0, abs=1.0)
