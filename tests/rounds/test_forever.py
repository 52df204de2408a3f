"""Rounds without an end: they open at the pace, and one that nobody can fill is skipped, never the end of the run."""

from __future__ import annotations

import random

import pytest
from rounds_model import Model, names

from coordinator import rounds
from coordinator.rounds import Declined, Drain, Invite, RoundPhase, RoundPolicy, Willing, Withheld
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FOREVER

DEADLINE_S = 60.0


def policy(expected: int, quorum: int) -> RoundPolicy:
    return RoundPolicy(
        expected=expected,
        quorum=quorum,
        rounds=FOREVER,
        exchanges=1,
        deadline_s=DEADLINE_S,
        join_grace_s=5.0,
        patience=1,
        paced=True,
        forever=True,
    )


def service(expected: int, quorum: int, who: str = "") -> Model:
    model = Model(policy(expected, quorum))
    for device in who or names(expected):
        model.join(device)
    if model.state.phase is RoundPhase.GATHERING:
        model.wait(5.0)
    return model


def silent(model: Model) -> None:
    """Nobody answers until the attempt is over."""
    while model.state.phase is RoundPhase.COLLECTING:
        model.wait_until_due()


def test_a_round_opens_when_the_pace_lets_it() -> None:
    model = Model(policy(2, 2))
    model.opens_at_s = 3600.0
    for device in "ab":
        model.join(device)
    assert model.state.phase is RoundPhase.RESTING
    assert rounds.rounds_due_s(model.state) == 3600.0
    model.wait_until_due()
    assert model.state.phase is RoundPhase.COLLECTING
    model.answer("a")
    model.answer("b")
    model.opens_at_s = 7200.0
    model.finish()
    assert (model.state.phase, model.state.place) == (RoundPhase.RESTING, ExchangeId(1, 0))
    commands = model.wait_until_due()
    assert Invite(("a", "b"), ExchangeId(1, 0), DEADLINE_S) in commands


def test_patience_ends_no_service() -> None:
    model = service(2, 2)
    model.answer("a")
    for attempts in (1, 2, 3, 4, 5):
        silent(model)
        assert model.state.phase is RoundPhase.RESTING
        assert len(model.skips) == attempts
        model.wait_until_due()
    assert model.skips[0] == "1 upload came of the 2 needed; silent: b"
    model.answer("b")  # it was never lost what the other had sent
    model.finish()
    assert (model.state.phase, model.state.place.round) == (RoundPhase.COLLECTING, 1)


def test_an_upload_that_comes_after_the_skip_counts_in_the_next_attempt() -> None:
    model = service(2, 2)
    model.answer("a")
    silent(model)
    model.answer("b")
    assert model.state.phase is RoundPhase.RESTING
    model.wait_until_due()
    assert model.state.phase is RoundPhase.FINISHING
    assert model.reduced[ExchangeId(0, 0)] == ("a", "b")


def test_too_few_devices_skip_a_round_until_one_joins() -> None:
    model = service(2, 2)
    model.leave("a")
    silent(model)
    model.wait_until_due()
    assert model.state.phase is RoundPhase.RESTING
    assert model.skips[-1] == "1 of the 2 devices needed are here"
    model.join("c")
    assert rounds.rounds_due_s(model.state) == model.now_s + 5.0  # its grace: others may come, too
    model.wait_until_due()
    assert model.state.phase is RoundPhase.COLLECTING


def test_everybody_declines_and_the_round_waits_for_the_first_who_does_not() -> None:
    model = service(2, 1)
    for device in "ab":
        model.feed(Declined(device, None, model.now_s))
    silent(model)
    assert model.skips == ["0 uploads came of the 1 needed; declined: a, b"]
    model.feed(Willing("b", model.now_s))
    commands = model.wait_until_due()
    assert [command for command in commands if isinstance(command, Invite)] == [
        Invite(("b",), ExchangeId(0, 0), DEADLINE_S)
    ]


def test_devices_that_withhold_skip_the_round() -> None:
    model = service(2, 2)
    model.feed(Withheld("a", ExchangeId(0, 0), "it diverged"))
    model.feed(Withheld("b", ExchangeId(0, 0), "it diverged"))
    assert model.state.phase is RoundPhase.RESTING
    assert "withheld: a, b" in model.skips[0]


def test_an_operator_stops_it_between_two_rounds_and_a_restart_keeps_the_pace() -> None:
    model = Model(policy(2, 1))
    model.opens_at_s = 3600.0
    for device in "ab":
        model.join(device)
    model.feed(Drain(model.now_s))
    assert model.state.phase is RoundPhase.DRAINED
    model.crash()
    for device in "ab":
        model.join(device)
    assert model.state.phase is RoundPhase.RESTING


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_it_neither_ends_nor_stands_still(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(policy(3, 2))
    for _ in range(300):
        device, phase = rng.choice("abc"), model.state.phase
        acts = [
            lambda d=device: model.join(d),
            lambda d=device: model.leave(d),
            lambda d=device: model.feed(Declined(d, rng.choice([None, model.state.place.round]), model.now_s)),
            lambda d=device: model.feed(Willing(d, model.now_s)),
            lambda d=device: model.feed(rounds.Lost(d)),
            lambda: model.wait(rng.random() * 100),
            model.crash,
        ]
        if device in model.assigned:
            acts += 4 * [lambda d=device: model.answer(d)]
        if phase is RoundPhase.FINISHING:
            acts = [model.finish]
        rng.choice(acts)()
        assert model.state.phase not in (RoundPhase.FAILED, RoundPhase.DONE)
    for device in "abc":  # and when all is well again, rounds go on
        model.join(device)
        model.feed(Willing(device, model.now_s))
    before = model.state.place.round
    for _ in range(40):
        if model.state.phase is RoundPhase.FINISHING:
            model.finish()
        elif model.state.phase is RoundPhase.COLLECTING and model.state.missing:
            model.answer(min(model.state.missing))
        else:
            model.wait_until_due()
    assert model.state.place.round > before
