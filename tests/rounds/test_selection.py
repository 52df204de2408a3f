"""Rounds that ask some of the devices: which, how many, and when they have enough."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_model import Model, names

from coordinator import rounds
from coordinator.rounds import Invite, Reduce, RoundPhase, RoundPolicy, selection
from edge_sdk.protocol.exchange_id import ExchangeId

NAMES = st.frozensets(st.sampled_from(names(26)), max_size=20)
POLICY = RoundPolicy(
    expected=10, quorum=3, rounds=40, exchanges=1, deadline_s=60.0, join_grace_s=0.0, participants=4, over_select=True
)


def test_how_many_are_asked_by_hand() -> None:
    assert selection.invitations(10, asked=0, answered=0) == 10
    assert selection.invitations(10, asked=98, answered=48) == 20  # half of them answer
    assert selection.invitations(10, asked=18, answered=13) == 14  # 10 / 0.75
    assert selection.invitations(10, asked=1000, answered=0) == 100
    assert selection.invitations(10, asked=10, answered=30) == 10


@given(NAMES, st.integers(0, 30), st.integers(0, 5), st.integers(0, 5))
def test_a_draw_is_even_in_size_and_stable(pool: frozenset[str], count: int, seed: int, round_: int) -> None:
    chosen = selection.select(pool, count, seed, round_)
    assert chosen <= pool
    assert len(chosen) == min(count, len(pool))
    for gone in pool:  # whoever goes is replaced by one other, and nobody else changes
        assert len(chosen - selection.select(pool - {gone}, count, seed, round_)) == (gone in chosen)


def test_everybody_has_a_turn() -> None:
    turns = Counter(device for r in range(1000) for device in selection.select(names(10), 3, 0, r))
    assert all(240 < turns[device] < 360 for device in names(10))
    assert selection.select(names(10), 3, 0, 7) != selection.select(names(10), 3, 1, 7)


def opened(policy: RoundPolicy = POLICY) -> Model:
    model = Model(policy)
    for device in names(policy.expected):
        model.join(device)
    assert model.state.phase is RoundPhase.COLLECTING
    return model


def one_round(model: Model, answers: float) -> int:
    """So large a share of those asked answer, and then the deadline comes if it must; how many were asked."""
    asked = sorted(model.state.invited)
    for device in asked[: round(answers * len(asked))]:
        if model.state.phase is RoundPhase.COLLECTING:
            model.answer(device)
    while model.state.phase is RoundPhase.COLLECTING:
        model.wait_until_due()
    model.finish()
    for device in asked:
        model.join(device)
    return len(asked)


def test_a_round_asks_some_and_closes_with_enough() -> None:
    model = opened()
    asked = sorted(model.state.invited)
    assert len(asked) == 4
    for device in asked[:3]:
        model.answer(device)
    assert model.state.phase is RoundPhase.COLLECTING
    closing = model.answer(asked[3])
    assert Reduce(ExchangeId(0, 0), tuple(asked), partial=True) in closing
    (_, following) = model.finish()
    assert isinstance(following, Invite)
    assert len(following.devices) == 4


def test_more_are_asked_as_fewer_answer_and_fewer_as_they_are_back() -> None:
    model = opened()
    for _ in range(12):
        last = one_round(model, 0.75)
    assert last >= 5
    model.state = dataclasses.replace(model.state, asked=0, answered=0)
    assert [one_round(model, 1.0) for _ in range(4)] == [last, 4, 4, 4]  # the first was asked before


def test_without_over_selection_as_many_are_asked_as_are_wanted() -> None:
    model = opened(dataclasses.replace(POLICY, over_select=False))
    assert [one_round(model, 0.75) for _ in range(8)] == [4] * 8


def measured(model: Model) -> tuple[int, int, frozenset[str]]:
    return model.state.asked, model.state.answered, model.state.unheard


def test_who_misses_the_deadline_has_not_answered() -> None:
    model = opened(dataclasses.replace(POLICY, quorum=2))
    *early, late = sorted(model.state.invited)
    for device in early:
        model.answer(device)
    while model.state.phase is RoundPhase.COLLECTING:
        model.wait_until_due()
    model.finish()
    model.upload(late, ExchangeId(0, 0))
    assert measured(model) == (4, 3, frozenset())


def test_of_who_was_not_needed_is_known_what_shows_later() -> None:
    model = opened()
    model.state = dataclasses.replace(model.state, invited=frozenset("abcdefg"))
    for device in "abcd":
        model.answer(device)
    assert measured(model) == (4, 4, {"e", "f", "g"})
    model.finish()
    model.upload("e", ExchangeId(0, 0))  # it came, only later
    model.upload("e", ExchangeId(0, 0))
    assert measured(model) == (5, 5, {"f", "g"})
    model.feed(rounds.Lost("f"))  # and this one never will
    model.state = dataclasses.replace(model.state, invited=frozenset("abcd"))
    for device in "abcd":
        model.answer(device)
    assert measured(model) == (5 + 1 + 4, 5 + 4, frozenset())


def test_when_too_few_answer_others_are_asked() -> None:
    model = opened(dataclasses.replace(POLICY, over_select=False))
    first = model.state.invited
    while model.state.misses == 0:
        model.wait_until_due()
    assert first < model.state.invited
    assert len(model.state.invited) >= 8


def test_what_was_measured_outlives_a_restart() -> None:
    state = rounds.resumed(POLICY, ExchangeId(3, 0), frozenset(), asked=20, answered=10)
    assert (state.asked, state.answered) == (20, 10)
    assert rounds.resumed(POLICY, ExchangeId(3, 1), frozenset(), asked=20, answered=10).asked == 20


def test_what_was_asked_before_a_restart_counts_after_it() -> None:
    """The draw after it may be another one: what late answers had taught is forgotten, or other devices are back."""
    model = Model(POLICY)
    model.state = dataclasses.replace(model.state, asked=20, answered=0)
    for device in names(10):
        model.join(device)
    assert model.state.invited == set(names(10))
    model.crash()
    for device in names(9):
        model.join(device)
    model.wait_until_due()
    assert len(model.state.invited) == 4
    one, *_ = sorted(model.state.members - model.state.invited)
    model.answer(one)
    assert model.state.folded == {one}
    (receipt,) = model.upload("j")
    assert isinstance(receipt, rounds.SendReceipt)  # it has not come back


def test_in_the_closing_exchange_everybody_is_asked() -> None:
    model = opened(dataclasses.replace(POLICY, rounds=1))
    one_round(model, 1.0)
    assert model.state.closing
    assert model.state.invited == set(names(10))


@pytest.mark.parametrize("over_select", [False, True])
def test_a_policy_without_participants_asks_everybody(over_select: bool) -> None:
    model = opened(dataclasses.replace(POLICY, participants=0, over_select=over_select))
    assert model.state.invited == set(names(10))
