"""Devices that decline: the round goes on without them, they may come back, and they are no silent ones."""

from __future__ import annotations

from test_rounds_cases import DEADLINE_S, joined, through

from coordinator import rounds
from coordinator.rounds import Invite, Reduce, RoundPhase
from edge_sdk.protocol.exchange_id import ExchangeId

FIRST = ExchangeId(0, 0)


def declined(model, device: str, round_: int | None = None) -> tuple[rounds.RoundCommand, ...]:
    return model.feed(rounds.Declined(device, round_, model.now_s))


def willing(model, device: str) -> tuple[rounds.RoundCommand, ...]:
    return model.feed(rounds.Willing(device, model.now_s))


def test_a_round_goes_on_without_a_device_that_declines() -> None:
    model = joined(3, 2)
    model.answer("a")
    declined(model, "c")
    assert model.answer("b")[-1] == Reduce(FIRST, ("a", "b"), partial=True)


def test_the_last_decline_closes_the_exchange() -> None:
    model = joined(3, 2)
    model.answer("a")
    model.answer("b")
    assert declined(model, "c") == (Reduce(FIRST, ("a", "b"), partial=True),)


def test_a_quorum_of_all_devices_becomes_smaller() -> None:
    model = joined(3, 3)
    declined(model, "c")
    model.answer("a")
    assert model.answer("b")[-1] == Reduce(FIRST, ("a", "b"), partial=True)


def test_a_device_that_declines_is_not_invited_until_it_is_willing() -> None:
    model = joined(3, 2)
    declined(model, "c")
    (invite,) = through(model, "a", "b")
    assert invite.devices == ("a", "b")
    assert willing(model, "c") == (Invite(("c",), ExchangeId(0, 1), DEADLINE_S),)
    model.answer("a")
    model.answer("b")
    assert model.answer("c")[-1] == Reduce(ExchangeId(0, 1), ("a", "b", "c"), partial=False)


def test_a_device_that_is_willing_again_in_the_same_exchange_is_waited_for() -> None:
    model = joined(3, 2)
    declined(model, "c")
    assert willing(model, "c") == ()  # it holds the Assign
    model.answer("a")
    model.answer("b")
    assert model.state.phase is RoundPhase.COLLECTING
    assert model.answer("c")[-1] == Reduce(FIRST, ("a", "b", "c"), partial=False)


def test_a_round_s_budget_is_forgotten_when_the_round_is_over() -> None:
    model = joined(3, 2)
    declined(model, "c", 0)
    (invite,) = through(model, "a", "b")
    assert invite.devices == ("a", "b")  # the second exchange of the round
    *_, invite = through(model, "a", "b")
    assert invite.devices == ("a", "b", "c")


def test_a_status_about_another_round_changes_nothing() -> None:
    model = joined(3, 2)
    before = model.state
    declined(model, "c", 7)
    assert model.state.missing == before.missing


def test_an_upload_of_a_device_that_declines_counts() -> None:
    model = joined(3, 2)
    declined(model, "c")
    model.answer("c")
    model.answer("a")
    assert model.state.phase is RoundPhase.COLLECTING
    assert model.answer("b")[-1] == Reduce(FIRST, ("a", "b", "c"), partial=False)


def test_one_that_declines_is_not_away_and_one_that_is_silent_is() -> None:
    model = joined(3, 1)
    model.answer("a")
    declined(model, "c")
    model.wait(DEADLINE_S)
    assert model.state.away == {"b"}


def test_a_run_waits_while_declines_alone_keep_it_from_its_quorum() -> None:
    model = joined(3, 3)
    for device in "abc":
        declined(model, device)
    for _ in range(20):
        model.wait(DEADLINE_S)
    assert model.state.phase is RoundPhase.COLLECTING
    willing(model, "b")
    assert model.answer("b")[-1] == Reduce(FIRST, ("b",), partial=True)


def test_silence_beside_a_decline_still_ends_the_run() -> None:
    model = joined(3, 3)
    declined(model, "c")
    for _ in range(3):
        model.wait(DEADLINE_S)
    assert model.state.phase is RoundPhase.FAILED
    assert "silent: a, b" in model.state.reason
    assert "declined: c" in model.state.reason


def test_a_draw_of_participants_takes_another_device() -> None:
    model = joined(4, 2, participants=2)
    first, second = sorted(model.state.invited)
    (invite,) = declined(model, first)
    assert len(invite.devices) == 1
    assert not {*invite.devices} & {first, second}
    assert willing(model, first) == ()
    model.answer(second)
    assert isinstance(model.answer(invite.devices[0])[-1], Reduce)


def test_a_device_that_leaves_is_no_longer_one_that_declines() -> None:
    model = joined(3, 1)
    declined(model, "c")
    model.leave("c")
    assert model.state.declined == frozenset()
