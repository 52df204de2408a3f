"""Worked cases of the rounds: who is invited, waited for, answered and blamed, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from rounds_model import Model, names, sent

from coordinator import rounds
from coordinator.rounds import EndRun, Fold, Invite, Persist, Reduce, RoundDone, RoundPhase, RoundPolicy, SendReceipt
from coordinator.rounds.exchanges import CLOSED, NOT_BEGUN, NOT_INVITED
from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol.exchange_id import ExchangeId

DEADLINE_S, RETRY_S, GRACE_S = 60.0, 2.0, 5.0


def policy(expected: int, quorum: int, **more: object) -> RoundPolicy:
    base = RoundPolicy(
        expected=expected,
        quorum=quorum,
        rounds=2,
        exchanges=2,
        deadline_s=DEADLINE_S,
        retry_s=RETRY_S,
        join_grace_s=GRACE_S,
        patience=1,
    )
    return dataclasses.replace(base, **more)


def joined(expected: int, quorum: int, who: str = "", **more: object) -> Model:
    """A run that is open, with these devices ("ab": a and b) invited; by default as many as expected."""
    model = Model(policy(expected, quorum, **more))
    for device in who or names(expected):
        model.join(device)
    if model.state.phase is RoundPhase.GATHERING:
        model.wait(GRACE_S)
    assert model.state.phase is RoundPhase.COLLECTING
    return model


def through(model: Model, *devices: str) -> tuple[rounds.RoundCommand, ...]:
    """These devices answer, and where that closes the exchange, the method is done with it."""
    for device in devices:
        model.answer(device)
    return model.finish() if model.state.phase is RoundPhase.FINISHING else ()


# -- a whole run ----------------------------------------------------------------------------------------------------


def test_a_clean_run_command_by_command():
    model = Model(policy(2, 2))
    assert model.join("b") == ()
    assert model.join("a") == (Invite(("a", "b"), ExchangeId(0, 0), DEADLINE_S),)
    assert model.upload("a") == (Persist("a", ExchangeId(0, 0), sent("a", ExchangeId(0, 0))),)
    assert model.commit() == (Fold("a", ExchangeId(0, 0), sent("a", ExchangeId(0, 0))),)
    assert model.answer("b")[1:] == (
        Fold("b", ExchangeId(0, 0), sent("b", ExchangeId(0, 0))),
        Reduce(ExchangeId(0, 0), ("a", "b"), partial=False),
    )
    assert model.finish() == (Invite(("a", "b"), ExchangeId(0, 1), DEADLINE_S),)
    assert through(model, "a", "b") == (RoundDone(0), Invite(("a", "b"), ExchangeId(1, 0), DEADLINE_S))
    through(model, "a", "b")
    assert through(model, "b", "a") == (RoundDone(1), Invite(("a", "b"), ExchangeId(2, 0), DEADLINE_S))
    assert model.state.closing
    model.answer("a")
    assert model.answer("b")[1:] == (Fold("b", ExchangeId(2, 0), sent("b", ExchangeId(2, 0))), EndRun(""))
    assert model.state.phase is RoundPhase.DONE


# -- gathering ------------------------------------------------------------------------------------------------------


def test_a_device_that_joins_twice_counts_once():
    model = Model(policy(2, 2))
    assert model.join("a") == model.join("a") == ()
    assert model.state.phase is RoundPhase.GATHERING
    assert rounds.rounds_due_s(model.state) is None


def test_the_rest_have_the_join_grace_from_the_quorum_on():
    model = Model(policy(4, 2))
    model.join("a")
    model.now_s = 10.0
    model.join("b")
    assert rounds.rounds_due_s(model.state) == 10.0 + GRACE_S
    model.now_s = 13.0
    model.join("c")  # one more does not push the moment back
    assert rounds.rounds_due_s(model.state) == 10.0 + GRACE_S
    assert model.wait(1.9) == ()
    assert model.wait(0.1) == (Invite(("a", "b", "c"), ExchangeId(0, 0), DEADLINE_S),)


def test_the_grace_begins_anew_when_the_quorum_was_lost():
    model = Model(policy(4, 2))
    model.join("a")
    model.join("b")
    model.leave("b")
    assert rounds.rounds_due_s(model.state) is None
    model.now_s = 100.0
    model.join("b")
    assert rounds.rounds_due_s(model.state) == 100.0 + GRACE_S


def test_no_grace_opens_at_the_next_tick():
    model = Model(policy(3, 1, join_grace_s=0.0))
    assert model.join("a") == ()
    assert model.join("b") == ()
    assert model.wait(0.0) == (Invite(("a", "b"), ExchangeId(0, 0), DEADLINE_S),)


@pytest.mark.parametrize("event", [rounds.DeviceRefused("c"), rounds.Left("c", 0.0)])
def test_the_run_opens_when_the_last_expected_device_will_not_come(event):
    model = Model(policy(3, 2))
    model.join("a")
    model.join("b")
    assert model.feed(event) == ()
    assert rounds.rounds_due_s(model.state) == 0.0
    assert model.wait(0.0) == (Invite(("a", "b"), ExchangeId(0, 0), DEADLINE_S),)


def ends_short_of_quorum(commands: Sequence[rounds.RoundCommand], quorum: int, gone: str) -> bool:
    """Whether the only command ends the run, with a reason that names the quorum and who is gone."""
    (end,) = commands
    return isinstance(end, EndRun) and f"quorum of {quorum}" in end.reason and f"({gone})" in end.reason


def test_a_refused_device_that_makes_the_quorum_impossible_ends_the_run_at_once():
    model = Model(policy(3, 3))
    model.join("a")
    assert ends_short_of_quorum(model.feed(rounds.DeviceRefused("c")), 3, "c")
    assert model.state.phase is RoundPhase.FAILED


def test_a_refused_device_may_come_back_fit():
    model = Model(policy(3, 2))
    model.feed(rounds.DeviceRefused("c"))
    model.join("a")
    model.join("c")
    assert model.state.gone == frozenset()
    assert model.state.phase is RoundPhase.GATHERING  # b is expected still
    assert model.join("b") == (Invite(("a", "b", "c"), ExchangeId(0, 0), DEADLINE_S),)


def test_strangers_that_are_refused_do_not_end_a_run_that_has_its_quorum():
    model = Model(policy(3, 3))
    model.join("a")
    model.join("b")
    model.join("c")
    for stranger in "xyz":
        assert model.feed(rounds.DeviceRefused(stranger)) == ()
    assert model.state.phase is RoundPhase.COLLECTING


# -- who is invited -------------------------------------------------------------------------------------------------


def test_a_newcomer_waits_for_the_next_exchange():
    model = joined(3, 2, "ab")
    assert model.join("c") == ()
    assert model.upload("c") == (SendReceipt("c", ExchangeId(0, 0), "refused", NOT_INVITED),)
    assert through(model, "a", "b") == (Invite(("a", "b", "c"), ExchangeId(0, 1), DEADLINE_S),)


def test_a_device_that_says_hello_again_gets_its_assign_again():
    model = joined(2, 2)
    model.now_s = 1.0
    assert model.join("a") == (Invite(("a",), ExchangeId(0, 0), DEADLINE_S - 1.0),)
    model.answer("a")
    assert model.join("a") == ()


def test_the_deadline_closes_with_a_quorum_and_the_silent_are_left_out():
    model = joined(3, 2)
    model.answer("a")
    model.answer("b")
    assert model.wait(DEADLINE_S) == (Reduce(ExchangeId(0, 0), ("a", "b"), partial=True),)
    assert model.state.away == {"c"}
    assert model.finish() == (Invite(("a", "b"), ExchangeId(0, 1), DEADLINE_S),)


@pytest.mark.parametrize("sign", ["late upload", "upload while the method is at it", "hello", "refused upload"])
def test_any_sign_of_life_brings_a_silent_device_back(sign):
    model = joined(3, 2)
    model.answer("a")
    model.answer("b")
    model.wait(DEADLINE_S)
    if sign == "upload while the method is at it":
        assert model.upload("c") == (SendReceipt("c", ExchangeId(0, 0), "late", CLOSED),)
    model.finish()
    if sign == "late upload":
        assert model.upload("c", ExchangeId(0, 0)) == (SendReceipt("c", ExchangeId(0, 0), "late", CLOSED),)
    elif sign == "refused upload":
        assert model.upload("c", ExchangeId(1, 0)) == (SendReceipt("c", ExchangeId(1, 0), "refused", NOT_BEGUN),)
    elif sign == "hello":
        assert model.join("c") == ()
    ended = through(model, "a", "b", *("c" if "while" in sign else ""))
    assert ended == (RoundDone(0), Invite(("a", "b", "c"), ExchangeId(1, 0), DEADLINE_S))


def test_a_lost_device_is_left_out_of_the_next_exchange_until_it_shows_up():
    model = joined(3, 2)
    model.feed(rounds.Lost("c"))
    model.feed(rounds.Lost("nobody"))
    assert model.state.missing == {"a", "b", "c"}  # a hint is no reason not to wait
    model.answer("c")  # it was not lost at all
    model.feed(rounds.Lost("b"))
    model.feed(rounds.Lost("a"))
    model.join("a")
    assert through(model, "a", "b") == (Invite(("a", "b", "c"), ExchangeId(0, 1), DEADLINE_S),)
    for device in "abc":
        model.answer(device)
    model.feed(rounds.Lost("b"))
    assert model.finish()[1:] == (Invite(("a", "c"), ExchangeId(1, 0), DEADLINE_S),)


def test_where_everybody_is_away_everybody_is_invited():
    model = joined(2, 2)
    for device in "ab":
        model.answer(device)
        model.feed(rounds.Lost(device))
    assert model.state.away == {"a", "b"}
    assert model.finish() == (Invite(("a", "b"), ExchangeId(0, 1), DEADLINE_S),)


# -- waiting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline_s", "times_s"),
    [
        (60.0, [2.0, 6.0, 14.0, 30.0, 60.0, 120.0]),  # after 2, 4, 8, 16; at both deadlines that were missed
        (10.0, [2.0, 6.0, 10.0, 20.0]),  # after 2, 4; at both deadlines
        (1.0, [1.0, 2.0]),  # the first wait would outlast the deadline
    ],
)
def test_the_silent_are_invited_again_at_growing_intervals(deadline_s, times_s):
    model = joined(2, 2, deadline_s=deadline_s, retry_s=2.0, patience=2)
    model.answer("b")
    again = []
    while len(again) < len(times_s):
        for command in model.wait_until_due():
            assert command == Invite(("a",), ExchangeId(0, 0), model.state.due_s - model.now_s)
            again.append(model.now_s)
    assert again == times_s


def test_patience_ends_with_the_names_of_the_silent():
    model = joined(4, 3, patience=2)
    model.answer("b")
    model.feed(rounds.DeviceRefused("d"))
    while not model.over:
        model.wait_until_due()
    assert model.now_s == 3 * DEADLINE_S
    assert model.state.reason.startswith("round 0, exchange 0: 1 upload")
    assert model.state.reason.endswith("silent: a, c; refused or left: d")


def test_each_exchange_has_the_whole_patience():
    model = joined(2, 2, patience=1)
    model.wait(DEADLINE_S)
    assert model.state.misses == 1
    through(model, "a", "b")
    model.wait(DEADLINE_S)
    assert model.state.phase is RoundPhase.COLLECTING
    assert model.state.misses == 1


def test_a_missed_deadline_invites_newcomers_too():
    model = joined(4, 2, "ab")
    model.answer("a")
    model.leave("b")
    assert model.join("c") == ()
    assert model.wait(DEADLINE_S) == (Invite(("c",), ExchangeId(0, 0), DEADLINE_S),)
    assert model.answer("c")[1:] == (
        Fold("c", ExchangeId(0, 0), sent("c", ExchangeId(0, 0))),
        Reduce(ExchangeId(0, 0), ("a", "c"), partial=True),
    )


# -- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [rounds.Left("c", 0.0), rounds.DeviceRefused("c")])
def test_a_device_that_left_is_not_waited_for(event):
    model = joined(3, 2)
    model.answer("a")
    model.answer("b")
    assert model.feed(event) == (Reduce(ExchangeId(0, 0), ("a", "b"), partial=True),)
    assert model.finish() == (Invite(("a", "b"), ExchangeId(0, 1), DEADLINE_S),)


def test_what_a_device_gave_before_it_left_counts():
    model = joined(3, 2)
    model.answer("c")
    model.leave("c")
    assert through(model, "a", "b") == (Invite(("a", "b"), ExchangeId(0, 1), DEADLINE_S),)
    assert model.reduced[ExchangeId(0, 0)] == ("a", "b", "c")


def test_a_device_that_leaves_between_persist_and_persisted_counts():
    """The row is in the ledger, where a restart would find it."""
    model = joined(3, 2)
    model.upload("c")
    model.leave("c")
    assert model.commit() == (Fold("c", ExchangeId(0, 0), sent("c", ExchangeId(0, 0))),)


@pytest.mark.parametrize("event", [rounds.Left("b", 0.0), rounds.DeviceRefused("b")])
def test_leaving_that_makes_the_quorum_impossible_ends_the_run_at_once(event):
    model = joined(2, 2)
    model.answer("b")  # would do for this exchange, but not for the next one
    assert ends_short_of_quorum(model.feed(event), 2, "b")


def test_leaving_while_the_method_is_at_it_ends_the_run_after_the_round_is_on_record():
    model = joined(2, 2, exchanges=1)
    model.answer("a")
    model.answer("b")
    assert model.leave("b") == ()
    done, *rest = model.finish()
    assert done == RoundDone(0)
    assert ends_short_of_quorum(rest, 2, "b")


def test_with_too_few_here_and_others_to_come_the_run_waits():
    model = joined(3, 1, "a")
    model.answer("a")
    model.leave("a")
    assert model.finish() == ()  # nobody is here; b and c may still come
    assert model.state.phase is RoundPhase.COLLECTING
    model.join("b")
    assert model.wait(DEADLINE_S) == (Invite(("b",), ExchangeId(0, 1), DEADLINE_S),)
    assert through(model, "b") == (RoundDone(0), Invite(("b",), ExchangeId(1, 0), DEADLINE_S))


def test_whoever_answered_the_closing_exchange_may_go():
    model = joined(2, 2, rounds=1, exchanges=1)
    through(model, "a", "b")
    assert model.state.closing
    model.answer("a")
    assert model.leave("a") == ()
    assert model.answer("b")[1:] == (Fold("b", ExchangeId(1, 0), sent("b", ExchangeId(1, 0))), EndRun(""))


# -- answers --------------------------------------------------------------------------------------------------------


def test_the_verdicts():
    model = joined(2, 2)
    model.answer("a")
    assert model.feed(rounds.Received("a", ExchangeId(0, 0), sent("a", ExchangeId(0, 0)))) == (
        SendReceipt("a", ExchangeId(0, 0), "duplicate", ""),
    )
    assert model.upload("b", ExchangeId(0, 1)) == (SendReceipt("b", ExchangeId(0, 1), "refused", NOT_BEGUN),)
    through(model, "b")
    assert model.upload("x", ExchangeId(0, 0)) == (SendReceipt("x", ExchangeId(0, 0), "late", CLOSED),)


def test_two_copies_of_one_upload_count_once():
    model = joined(2, 2)
    model.upload("a")
    model.upload("a")  # before the first copy is durable
    assert model.commit() == (Fold("a", ExchangeId(0, 0), sent("a", ExchangeId(0, 0))),)
    assert model.commit() == (SendReceipt("a", ExchangeId(0, 0), "duplicate", ""),)


def test_a_commit_that_comes_after_the_close_is_late():
    model = joined(3, 2)
    model.answer("a")
    model.answer("b")
    model.upload("c")
    model.wait(DEADLINE_S)
    assert model.state.phase is RoundPhase.FINISHING
    assert model.commit() == (SendReceipt("c", ExchangeId(0, 0), "late", CLOSED),)
    assert model.reduced[ExchangeId(0, 0)] == ("a", "b")
    model.upload("c", ExchangeId(0, 0))
    model.finish()
    model.pending.append(
        ("c", ExchangeId(0, 0), sent("c", ExchangeId(0, 0)))
    )  # one that was on its way before the close
    assert model.commit() == (SendReceipt("c", ExchangeId(0, 0), "late", CLOSED),)


@pytest.mark.parametrize("end", ["done", "failed"])
def test_after_the_end_uploads_are_answered_and_nothing_else_happens(end):
    model = joined(1, 1, rounds=1, exchanges=1)
    if end == "done":
        through(model, "a")
        through(model, "a")
    else:
        assert model.feed(rounds.Broken("the broker is gone")) == (EndRun("the broker is gone"),)
    place = model.state.place
    state = model.state
    verdict = "duplicate" if end == "done" else "late"
    (answer,) = model.feed(rounds.Received("a", place, sent("a", place)))
    assert answer.verdict == verdict
    (answer,) = model.feed(rounds.Received("b", ExchangeId(0, 0), sent("b", ExchangeId(0, 0))))
    assert answer.verdict == "late"
    for event in (
        rounds.Joined("a", 0.0),
        rounds.DeviceRefused("a"),
        rounds.Left("a", 0.0),
        rounds.Lost("a"),
        rounds.RoundTick(1e9),
        rounds.Finished(0.0),
        rounds.Broken("again"),
    ):
        assert model.feed(event) == ()
    assert model.state == state


def test_nothing_but_the_table_decides():
    """A rule whose action leads elsewhere than its row says is a fault of ours, and is said to be one."""
    rule = dataclasses.replace(rounds.ROUND_MACHINE.rules[0], then=(RoundPhase.FAILED,))
    machine = type(rounds.ROUND_MACHINE)([rule])
    with pytest.raises(LocalProtocolError, match=r"Joined .*from gathering to"):
        machine.advance(Model(policy(2, 2)).state, rounds.Joined("a", 0.0))
    with pytest.raises(LocalProtocolError, match="two rules"):
        type(rounds.ROUND_MACHINE)([rule, rule])


# -- restarts -------------------------------------------------------------------------------------------------------


def restarted(expected: int, quorum: int, place: ExchangeId, folded: str, **more: object) -> Model:
    model = Model(policy(expected, quorum, **more))
    model.round, model.rows = place.round, {place: {device: sent(device, place) for device in folded}} if folded else {}
    model.closed = {ExchangeId(place.round, i): tuple(names(expected)) for i in range(place.exchange)}
    model.crash()
    return model


def test_after_a_restart_only_those_without_a_durable_upload_are_invited():
    model = restarted(3, 2, ExchangeId(1, 1), "a")
    assert model.state.phase is RoundPhase.GATHERING
    assert model.feed(rounds.Received("a", ExchangeId(1, 1), sent("a", ExchangeId(1, 1)))) == (
        SendReceipt("a", ExchangeId(1, 1), "duplicate", ""),
    )
    assert model.upload("b", ExchangeId(1, 0)) == (SendReceipt("b", ExchangeId(1, 0), "late", CLOSED),)
    assert model.upload("b", ExchangeId(1, 1)) == ()  # sent again when the exchange is open
    model.join("a")
    model.join("b")
    assert model.join("c") == (Invite(("b", "c"), ExchangeId(1, 1), DEADLINE_S),)
    model.answer("b")
    assert model.answer("c")[1:] == (
        Fold("c", ExchangeId(1, 1), sent("c", ExchangeId(1, 1))),
        Reduce(ExchangeId(1, 1), ("a", "b", "c"), partial=False),
    )


def test_after_a_restart_an_exchange_that_had_all_uploads_closes_as_it_did():
    """Its record may have been lost with the power, and its outcome told: nobody new may change it."""
    model = restarted(2, 2, ExchangeId(0, 0), "ab")
    model.join("x")
    assert model.join("a") == (Reduce(ExchangeId(0, 0), ("a", "b"), partial=True),)
    assert model.finish() == (Invite(("a", "x"), ExchangeId(0, 1), DEADLINE_S),)


def test_after_a_restart_a_round_whose_end_was_not_on_record_ends():
    model = restarted(2, 2, ExchangeId(0, 2), "")
    assert model.state.place == ExchangeId(1, 0)
    model.join("a")
    assert model.join("b") == (RoundDone(0), Invite(("a", "b"), ExchangeId(1, 0), DEADLINE_S))
    through(model, "a", "b")
    assert through(model, "a", "b") == (RoundDone(1), Invite(("a", "b"), ExchangeId(2, 0), DEADLINE_S))


def test_after_a_restart_the_closing_exchange_does_not_wait_for_those_who_answered_it():
    model = restarted(3, 3, ExchangeId(2, 0), "ab")
    assert rounds.rounds_due_s(model.state) is None
    assert model.join("c") == (Invite(("c",), ExchangeId(2, 0), DEADLINE_S),)
    assert model.answer("c")[1:] == (Fold("c", ExchangeId(2, 0), sent("c", ExchangeId(2, 0))), EndRun(""))


def test_after_a_restart_a_complete_closing_exchange_needs_nobody():
    model = restarted(2, 1, ExchangeId(2, 0), "ab")
    assert rounds.rounds_due_s(model.state) == 0.0
    assert model.wait(0.0) == (EndRun(""),)


def test_after_a_restart_a_closing_exchange_with_a_quorum_waits_the_grace_for_the_rest():
    model = restarted(3, 2, ExchangeId(2, 0), "ab")
    assert model.wait(100.0) == ()  # the first tick only starts the grace
    assert rounds.rounds_due_s(model.state) == 100.0 + GRACE_S
    assert model.wait(GRACE_S) == (EndRun(""),)


def test_after_a_restart_one_who_answered_the_closing_exchange_and_left_still_counts():
    model = restarted(3, 2, ExchangeId(2, 0), "a")
    assert model.leave("a") == ()
    model.join("b")
    assert model.state.phase is RoundPhase.GATHERING  # c is expected still
    assert model.join("c") == (Invite(("b", "c"), ExchangeId(2, 0), DEADLINE_S),)
    assert restarted(2, 2, ExchangeId(2, 0), "a").leave("a") == ()
