"""An operator stops a run or takes a device out: the round is finished, and no new one is taken."""

from __future__ import annotations

import dataclasses

from rounds_model import Model

from coordinator import rounds
from coordinator.rounds import Dismiss, Invite, RoundDone, RoundPhase, RoundPolicy
from edge_sdk.protocol.exchange_id import ExchangeId

POLICY = RoundPolicy(expected=3, quorum=2, rounds=3, exchanges=2, join_grace_s=5.0)


def running(**changes: object) -> Model:
    model = Model(dataclasses.replace(POLICY, **changes))
    for device in "abc":
        model.join(device)
    assert model.state.phase is RoundPhase.COLLECTING
    return model


def exchange(model: Model, *devices: str) -> tuple[rounds.RoundCommand, ...]:
    for device in devices:
        model.answer(device)
    return model.finish()


def test_a_run_stops_after_the_last_exchange_of_its_round():
    model = running()
    assert model.feed(rounds.Drain(0.0)) == ()
    assert isinstance(exchange(model, "a", "b", "c")[-1], Invite)
    assert exchange(model, "a", "b", "c") == (RoundDone(0),)
    assert model.state.phase is RoundPhase.DRAINED
    assert model.state.place == ExchangeId(1, 0)
    assert rounds.rounds_due_s(model.state) is None


def test_a_run_that_has_not_begun_stops_at_once():
    model = Model(POLICY)
    model.join("a")
    model.feed(rounds.Drain(0.0))
    assert model.state.phase is RoundPhase.DRAINED


def test_the_closing_exchange_still_takes_place():
    model = running(rounds=1, exchanges=1)
    model.feed(rounds.Drain(0.0))
    exchange(model, "a", "b", "c")
    assert model.state.closing
    assert model.state.phase is RoundPhase.COLLECTING


def test_a_stop_that_is_taken_back_stops_nothing():
    model = running(exchanges=1)
    model.feed(rounds.Drain(0.0))
    model.feed(rounds.CancelDrain())
    assert isinstance(exchange(model, "a", "b", "c")[-1], Invite)


def test_a_run_that_waits_for_devices_that_decline_stops_at_once():
    model = running(exchanges=1)
    for device in "bc":
        model.feed(rounds.Declined(device, None, 0.0))
    model.answer("a")
    assert model.state.stalled
    model.feed(rounds.Drain(0.0))
    assert model.state.phase is RoundPhase.DRAINED
    assert model.state.place == ExchangeId(0, 0)
    assert model.state.folded == {"a"}


def test_a_run_that_stops_does_not_wait_beyond_the_deadline_for_devices_that_decline():
    model = running(exchanges=1)
    model.answer("a")
    model.feed(rounds.Drain(0.0))
    for device in "bc":
        model.feed(rounds.Declined(device, None, 0.0))
    assert model.state.phase is RoundPhase.COLLECTING
    model.feed(rounds.RoundTick(model.state.due_s))
    assert model.state.phase is RoundPhase.DRAINED


def test_a_restart_that_has_an_order_to_stop_finishes_its_round():
    state = rounds.resumed(POLICY, ExchangeId(1, 1), frozenset("a"), stopping=True)
    model = Model(POLICY)
    model.state, model.round = state, 1
    model.rows[ExchangeId(1, 1)] = {"a": ""}
    for device in "abc":
        model.join(device)
    exchange(model, "b", "c")
    assert model.state.phase is RoundPhase.DRAINED
    assert model.state.place == ExchangeId(2, 0)


def test_a_restart_after_the_last_exchange_stops_before_the_next_round():
    state = rounds.resumed(POLICY, ExchangeId(0, 2), frozenset(), stopping=True)
    model = Model(POLICY)
    model.state = state
    model.join("a")
    model.join("b")
    assert model.join("c") == (RoundDone(0),)
    assert model.state.phase is RoundPhase.DRAINED


def test_a_device_finishes_its_round_and_is_told():
    model = running()
    model.feed(rounds.Drain(0.0, "b"))
    (invite,) = exchange(model, "a", "b", "c")
    assert invite.devices == ("a", "b", "c")
    done, dismissed, invite = exchange(model, "a", "b", "c")
    assert (done, dismissed, invite.devices) == (RoundDone(0), Dismiss(("b",)), ("a", "c"))
    assert model.state.gone == {"b"}
    assert model.state.draining == frozenset()


def test_a_device_that_comes_back_in_time_stays():
    model = running(exchanges=1)
    model.feed(rounds.Drain(0.0, "b"))
    model.feed(rounds.CancelDrain("b"))
    assert exchange(model, "a", "b", "c")[-1].devices == ("a", "b", "c")


def test_the_result_still_reaches_a_device_that_is_taken_out_in_the_last_round():
    model = running(rounds=1, exchanges=1)
    model.feed(rounds.Drain(0.0, "b"))
    assert exchange(model, "a", "b", "c")[-1].devices == ("a", "b", "c")


def test_nobody_waits_after_a_restart_for_a_device_that_was_taken_out():
    model = Model(POLICY)
    model.state = rounds.resumed(POLICY, ExchangeId(0, 0), frozenset(), gone=frozenset("b"))
    model.join("a")
    assert isinstance(model.join("c")[-1], Invite)
