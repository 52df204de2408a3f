"""Operators' commands to a running coordinator: carried out once, answered, and kept over a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import fleets
import pytest

from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy, RoundState
from edge_sdk.device.session import SessionPhase
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import DeviceStatus, Refusal
from edge_sdk.protocol.operator_messages import Control, ControlAnswer, Inquiry, LogLines
from edge_sdk.transport.base import Incoming

OPERATOR, STEADY, OTHER = "desk-1", "device-00", "device-01"


class Stop(Exception):  # no error
    """Ends a run in virtual time."""


def _stop() -> None:
    raise Stop


class Desk:
    """An operator on the hub of a run in virtual time."""

    def __init__(self, pictures: Path, *, ledger: Ledger | None = None, **federation: Any) -> None:
        self.run = fleets.Run(fleets.config(pictures, **{"devices": 3, "quorum": 2, **federation}), ledger=ledger)
        self._link = self.run.hub.link(OPERATOR)
        self._link.connect(topics.operator_subscriptions("tiny", OPERATOR))
        self._requests = (bytes([number]) * 16 for number in itertools.count(1))

    def at(self, time_s: float, question: Control | Inquiry) -> None:
        self.run.clock.at(time_s, lambda: self._link.send(topics.control("tiny"), codec.encode(question)))

    def command(self, operation: str, device: str | None = None, at_s: float = 4.0) -> Control:
        control = Control(
            federation="tiny", operation=operation, device=device, operator=OPERATOR, request=next(self._requests)
        )
        self.at(at_s, control)
        return control

    def ask(self, about: str, device: str | None = None, at_s: float = 4.0) -> Inquiry:
        inquiry = Inquiry(
            federation="tiny", about=about, device=device, operator=OPERATOR, request=next(self._requests)
        )
        self.at(at_s, inquiry)
        return inquiry

    def answers(self, until_s: float = 1000.0) -> list[ControlAnswer]:
        """Run to the end, at most until a time, and return what came back."""
        self.run.clock.at(until_s, _stop)
        with contextlib.suppress(Stop):
            self.run.run()
        found = []
        while (event := self._link.poll(0.0)) is not None:
            if isinstance(event, Incoming):
                message = codec.decode(event.frame).message
                found += [message] if isinstance(message, ControlAnswer) else []
        return found


@pytest.fixture
def desk(pictures: Path) -> Desk:
    found = Desk(pictures)
    for each in found.run.devices:
        found.run.slow_down(each.device.kit.id, 3.0)
    return found


def test_the_devices_of_a_run(desk: Desk) -> None:
    inquiry = desk.ask("devices", at_s=7.0)
    (answer,) = desk.answers()
    assert (answer.done, answer.request, answer.more) == (True, inquiry.request, False)
    assert [entry.device for entry in answer.devices] == ["device-00", "device-01", "device-02"]
    assert [entry.state for entry in answer.devices] == ["training"] * 3
    first = answer.devices[0]
    assert (first.number, first.runtime, first.board, first.round) == (0, "numpy", "rpi4", 2)
    assert first.here_s is not None
    assert 0 < first.here_s < 7.0
    assert 0 < first.figures["accuracy"] < 1
    assert "round 3 of 3" in answer.run


def test_why_devices_are_not_training(desk: Desk) -> None:
    slow = desk.run.devices[2].device.kit.id
    desk.run.slow_down(slow, 30.0)
    desk.command("drain", OTHER, at_s=2.0)
    desk.ask("devices", at_s=5.0)
    desk.ask("devices", at_s=33.0)
    _, early, late = desk.answers()
    assert [entry.state for entry in early.devices] == ["waiting", "draining", "training"]
    assert [entry.state for entry in late.devices] == ["training", "drained", "training"]
    assert [bool(entry.why) for entry in late.devices] == [False, True, False]


def test_many_devices_come_page_by_page(pictures: Path) -> None:
    desk = Desk(pictures, devices=18, quorum=18)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.ask("devices")
    desk.ask("devices", "device-15")
    first, second = desk.answers()
    assert (len(first.devices), first.more) == (16, True)
    assert ([entry.device for entry in second.devices], second.more) == (["device-16", "device-17"], False)


def test_a_drained_device_finishes_its_round_and_stops(desk: Desk) -> None:
    sent = desk.run.tap()
    desk.command("drain", OTHER)
    (answer,) = desk.answers()
    assert answer.done
    assert desk.run.server.rounds.phase is RoundPhase.DONE
    assert desk.run.server.record.rounds_done == {"device-00": 3, OTHER: 2, "device-02": 3}
    assert [m.reason for m in sent if isinstance(m, Refusal)] == ["drained"] * 2  # it asks again before it obeys
    participants = {each.device.kit.id: each.participant for each in desk.run.devices}
    assert participants[OTHER].context.session.phase is SessionPhase.REFUSED
    assert participants[OTHER].refusal is not None
    assert participants[OTHER].refusal.reason == "drained"


def test_a_drain_that_is_taken_back(desk: Desk) -> None:
    desk.command("drain", OTHER, at_s=4.0)
    desk.command("resume", OTHER, at_s=4.5)
    assert [answer.done for answer in desk.answers()] == [True, True]
    assert desk.run.server.record.rounds_done[OTHER] == 3


def test_the_same_command_twice_is_carried_out_once_and_answered_twice(desk: Desk) -> None:
    again = desk.command("drain", OTHER, at_s=4.0)
    desk.command("resume", OTHER, at_s=4.2)
    desk.at(4.4, again)
    first, _, repeated = desk.answers()
    assert repeated == first
    assert desk.run.server.record.rounds_done[OTHER] == 3


@pytest.mark.parametrize(
    ("operation", "device"),
    [("drain", "device-77"), ("forget", "device-77"), ("resume", "device-77"), ("forget", None), ("revoke", OTHER)],
)
def test_a_mistake_changes_nothing_and_is_answered(desk: Desk, operation: str, device: str | None) -> None:
    desk.command(operation, device)
    (answer,) = desk.answers()
    assert not answer.done
    assert answer.text
    assert desk.run.server.record.rounds_done == dict.fromkeys(("device-00", OTHER, "device-02"), 3)


@pytest.mark.parametrize("operation", ["drain", "forget"])
def test_no_device_is_taken_out_without_which_the_run_would_fail(pictures: Path, operation: str) -> None:
    desk = Desk(pictures, quorum=3)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.command(operation, OTHER)
    (answer,) = desk.answers()
    assert not answer.done
    assert "quorum" in answer.text
    assert desk.run.server.rounds.phase is RoundPhase.DONE


def test_a_command_that_nobody_waits_for_is_not_carried_out(desk: Desk) -> None:
    desk.at(4.0, Control(federation="tiny", operation="drain"))
    assert desk.answers() == []
    assert desk.run.server.rounds.phase is RoundPhase.DONE
    assert desk.run.server.record.refused_frames == {"unknown": {"knowledge": 1}}


def test_a_device_that_declines_says_why(desk: Desk) -> None:
    status = DeviceStatus(federation="tiny", device=OTHER, state="ready", boot=1, declines="charging", why="3 % left")
    link = desk.run.hub.link("rogue")
    link.connect([])
    frame = codec.encode(status, codec.Stamp(1, 1000))
    desk.run.clock.at(4.0, lambda: link.send(topics.device_status("tiny", OTHER), frame))
    desk.ask("devices", at_s=4.5)
    (answer,) = desk.answers(until_s=20.0)
    assert [(entry.state, entry.why) for entry in answer.devices][1] == ("declined", "3 % left")


# -- the whole run --------------------------------------------------------------------------------------------------


def test_a_run_stops_between_two_rounds_and_goes_on_later_with_the_same_bits(pictures: Path) -> None:
    whole = fleets.Run(fleets.config(pictures, devices=3)).finished()
    desk = Desk(pictures, quorum=3)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.command("drain", at_s=2.0)
    (answer,) = desk.answers()
    assert answer.done
    assert desk.run.server.drained
    assert len(desk.run.server.record.rounds) == 1
    stores = {each.device.kit.id: each.participant.context.store for each in desk.run.devices}
    ledger = desk.run.server.ledger
    ledger.keep_orders({})  # as the loop of a deployment does at its end
    later = fleets.Run(fleets.config(pictures, devices=3), ledger=ledger, stores=stores).finished()
    assert later.server.rounds.phase is RoundPhase.DONE
    assert later.coordinator_bytes == whole.coordinator_bytes
    assert later.model_bytes == whole.model_bytes


def test_a_device_that_says_hello_with_the_order_to_stop_hears_of_no_end(pictures: Path, monkeypatch) -> None:
    desk = Desk(pictures, quorum=3)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.command("drain", at_s=2.0)
    desk.answers()
    server = desk.run.server
    assert server.drained
    said: list[str] = []
    monkeypatch.setattr(server._sender, "announce", lambda state, _reason: said.append(state))
    server.handle(Incoming(topics.up("tiny", STEADY, "hello"), codec.encode(server.hellos[STEADY])), 100.0)
    assert said == ["lost"]


# -- forgetting -----------------------------------------------------------------------------------------------------


def test_a_forgotten_device_is_deleted_at_the_end_of_the_round(desk: Desk) -> None:
    desk.run.slow_down(OTHER, 1000.0)
    desk.command("forget", OTHER)
    desk.ask("devices", at_s=4.5)
    _, listed = desk.answers(until_s=500.0)
    second = listed.devices[1]  # it is on the roster
    assert (second.state, second.number, second.seen_s, second.round) == ("expected", None, None, 0)
    assert set(desk.run.server.ledger.enrolled()) == {"device-00", "device-02"}
    assert set(desk.run.server.hellos) == {"device-00", "device-02"}
    assert desk.run.server.rounds.phase is RoundPhase.DONE


@pytest.mark.parametrize(
    ("folded", "exchange", "unrecorded", "kept"),
    [("", 0, None, False), ("a", 0, None, True), ("", 1, None, True), ("", 0, 1, True)],
)
def test_a_device_whose_uploads_a_restart_needs_is_kept(
    folded: str, exchange: int, unrecorded: int | None, kept: bool
) -> None:
    policy = RoundPolicy(expected=2, quorum=1, rounds=3, exchanges=2)
    state = RoundState(policy=policy, place=ExchangeId(2, exchange), folded=frozenset(folded), unrecorded=unrecorded)
    assert state.between_rounds is not kept


def test_an_operator_is_told_that_a_forgotten_device_still_runs(desk: Desk) -> None:
    desk.command("forget", OTHER)
    desk.run.clock.at(5.0, lambda: desk.run.hub.drop_link(OTHER, 0.5))
    (answer,) = desk.answers()
    assert "link" in answer.text
    assert OTHER in desk.run.server.ledger.enrolled()  # it joined again, and nobody started it


def test_orders_survive_a_restart(pictures: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.keep_orders({"drained": [OTHER], "forgotten": [], "stopping": True})
    ledger.close()
    run = fleets.Run(fleets.config(pictures, devices=3, quorum=2), ledger=Ledger(tmp_path / "ledger.db"))
    run.clock.at(1000.0, _stop)
    with contextlib.suppress(Stop):
        run.run()
    assert run.server.drained
    assert run.server.record.rounds_done == {"device-00": 1, "device-02": 1}
    assert [note["reason"] for note in run.server.record.refused_devices.values()] == ["drained"]


# -- logs -----------------------------------------------------------------------------------------------------------


def test_a_device_that_sends_no_log_is_said_at_once(desk: Desk) -> None:
    desk.ask("logs", OTHER)
    (answer,) = desk.answers()
    assert not answer.done
    assert OTHER in answer.text


def test_the_last_lines_of_a_device(desk: Desk) -> None:
    for each in desk.run.devices:
        each.participant.context.owner.last_lines = lambda: ("one", "two", "three")  # type: ignore[method-assign]
    inquiry = dataclasses.replace(desk.ask("logs", OTHER, at_s=1e6), lines=2)
    desk.at(4.0, inquiry)
    (answer,) = desk.answers()
    assert answer.lines == ("two", "three")


def test_log_lines_that_nobody_asked_for_are_counted(desk: Desk) -> None:
    lines = LogLines(federation="tiny", device=OTHER, request=bytes(16), lines=("x",))
    link = desk.run.hub.link("rogue")
    link.connect([])
    desk.run.clock.at(4.0, lambda: link.send(topics.up("tiny", OTHER, "log"), codec.encode(lines)))
    assert desk.answers() == []
    assert desk.run.server.record.refused_frames == {OTHER: {"knowledge": 1}}


def test_a_paused_device_is_neither_invited_nor_waited_for_until_it_is_resumed(pictures: Path) -> None:
    desk = Desk(pictures, rounds=6)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.command("pause", OTHER, at_s=4.0)
    desk.ask("devices", at_s=8.0)
    desk.command("resume", OTHER, at_s=12.0)
    paused, told, resumed = desk.answers()
    assert paused.done
    assert resumed.done
    assert [entry.state for entry in told.devices][1] == "paused"
    assert desk.run.server.rounds.phase is RoundPhase.DONE
    done = desk.run.server.record.rounds_done
    assert done[STEADY] == 6
    assert 2 <= done[OTHER] < 6
    assert desk.run.server.record.declined == {OTHER: {"paused": 6 - done[OTHER]}}


def test_a_pause_outlives_a_restart_of_the_coordinator(pictures: Path) -> None:
    desk = Desk(pictures, rounds=5)
    for each in desk.run.devices:
        desk.run.slow_down(each.device.kit.id, 3.0)
    desk.command("pause", OTHER, at_s=4.0)
    desk.run.power_cut("coordinator", 5.0, 1.0)
    desk.answers()
    assert desk.run.server.record.rounds_done[OTHER] < desk.run.server.record.rounds_done[STEADY] == 5


def test_a_pause_of_everybody_and_a_revocation_without_keys_are_not_carried_out(desk: Desk) -> None:
    desk.command("pause")
    desk.command("revoke", OTHER)
    desk.command("pause", "nobody")
    assert [answer.done for answer in desk.answers()] == [False] * 3
