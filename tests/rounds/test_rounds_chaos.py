"""Any sequence of events whatever: the promises hold, and when faults stop, the run ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import event as note
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from rounds_model import Model, names

from coordinator import rounds
from coordinator.rounds import RoundPhase, RoundPolicy
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.state_machine import SAME

MOST_TO_END = 600
"""Events within which a run of at most 3 rounds of 3 exchanges with 6 devices must end once faults have stopped."""


@st.composite
def policies(draw: st.DrawFn) -> RoundPolicy:
    expected = draw(st.integers(1, 4))
    participants = draw(st.integers(0, expected))
    return RoundPolicy(
        expected=expected,
        quorum=draw(st.integers(1, participants or expected)),
        participants=participants,
        over_select=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
        rounds=draw(st.integers(1, 3)),
        exchanges=draw(st.integers(1, 3)),
        deadline_s=draw(st.sampled_from([1.0, 10.0, 60.0, 60.0])),
        retry_s=2.0,
        join_grace_s=draw(st.sampled_from([0.0, 5.0])),
        patience=draw(st.integers(0, 2)),
    )


chaos = st.binary(min_size=200, max_size=600)
"""Three bytes an event: up to 200 events.  Bytes, because they are drawn a hundred times as fast as objects."""


def play(model: Model, script: bytes, *, leaving: bool) -> None:
    """Carry a script out: mostly what devices do, now and then what they should not."""
    everybody = names(model.policy.expected + 2)  # two more than the run was made for
    for kind, who, what in zip(script[::3], script[1::3], script[2::3], strict=False):
        device = everybody[who % len(everybody)]
        if model.over:
            model.feed(rounds.Received(device, model.state.place, what))
            return
        if kind < 60:
            model.upload(device, upload=what)  # a device that sends twice need not send the same
        elif kind < 110 and model.pending:
            model.commit(who)
        elif kind < 140:
            model.join(device)
        elif kind < 180 and model.state.phase is RoundPhase.FINISHING:
            model.finish()
        elif kind < 205:
            model.wait(what / 64)
        elif kind < 208:
            model.wait_until_due() if rounds.rounds_due_s(model.state) is not None else model.tick()
        elif kind < 230:
            model.feed(rounds.Lost(device))
        elif kind < 240:
            model.upload(device, ExchangeId(what % 4, what // 4 % 3))
        elif kind < 244:
            model.crash(after_commit=what % 2 == 0)
        elif kind < 246 and model.pending:  # a commit whose word comes twice
            again = model.pending[who % len(model.pending)]
            model.commit(who)
            model.feed(rounds.Persisted(*again, model.now_s))
        elif kind < 248 and leaving and what < 64:
            model.feed(rounds.Withheld(device, model.state.place, f"diverged {what}"))
        elif kind < 247 and leaving:
            model.leave(device)
        elif kind < 248 and leaving:
            model.feed(rounds.DeviceRefused(device))
        elif 248 <= kind < 252:
            model.feed(rounds.Declined(device, (None, model.state.place.round, 0)[what % 3], model.now_s))
        elif 252 <= kind < 255:
            model.feed(rounds.Willing(device, model.now_s))
        elif kind == 255 and leaving and what < 32:
            model.feed(rounds.Broken("the disk is gone"))


def settle(model: Model, alive: tuple[str, ...]) -> None:
    """Faults stop: everybody is here, every message arrives, everything is answered, and nobody declines."""
    for device in alive:
        if not model.over:
            model.join(device)
    for device in sorted(model.state.declined):
        if not model.over:
            model.feed(rounds.Willing(device, model.now_s))
    for _ in range(MOST_TO_END):
        if model.over:
            return
        if model.pending:
            model.commit()
        elif model.state.phase is RoundPhase.FINISHING:
            model.finish()
        elif model.state.phase is RoundPhase.COLLECTING and model.state.missing & set(alive):
            model.upload(min(model.state.missing & set(alive)))
        else:
            model.wait_until_due()
    raise AssertionError(f"still {model.state}")


@examples(300)
@given(policies(), chaos)
def test_promises_hold_whatever_happens(policy, script):
    model = Model(policy)
    play(model, script, leaving=True)
    note(f"{model.state.phase.value} in round {model.state.place.round}")


@examples(150)
@given(policies(), chaos)
def test_a_run_ends_once_faults_stop(policy, script):
    model = Model(policy)
    play(model, script, leaving=True)
    settle(model, names(policy.expected))
    assert model.over


@examples(150)
@given(policies(), chaos)
def test_a_run_that_nobody_left_succeeds_once_faults_stop(policy, script):
    model = Model(policy)
    play(model, script, leaving=False)
    out_of_patience = model.state.phase is RoundPhase.FAILED
    settle(model, names(policy.expected + 2))
    assert model.state.phase is (RoundPhase.FAILED if out_of_patience else RoundPhase.DONE)
    if model.state.phase is RoundPhase.DONE:
        assert [place.exchange for place in sorted(model.reduced)] == [*range(policy.exchanges)] * policy.rounds


@pytest.mark.long  # some arrows are rare: thousands of runs
def test_every_arrow_of_the_drawing_is_taken_by_some_run():
    """What docs/reference/states.md draws can happen, and nothing else does."""
    rng = random.Random(0)
    drawn = {
        (phase, rule.event, after)
        for rule in rounds.ROUND_MACHINE.rules
        for phase in rule.phases
        for after in rule.then
        if after not in (phase, SAME)
    }
    taken: set[object] = set()
    for _ in range(20_000):
        policy = RoundPolicy(
            expected=3,
            quorum=rng.randint(1, 3),
            rounds=rng.randint(1, 2),
            exchanges=rng.randint(1, 2),
            deadline_s=rng.choice([1.0, 60.0]),
            patience=0,
        )
        model = Model(policy)
        play(model, rng.randbytes(400), leaving=True)
        taken |= model.arrows
        if taken == drawn:
            return
    assert taken == drawn
