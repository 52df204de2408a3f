"""How long devices take for their answers, and who is invited again meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from random import Random

import pytest
from rounds_model import Model
from test_rounds_cases import joined, through

from coordinator import rounds
from coordinator.rounds import Invite, RoundPhase
from coordinator.rounds.answer_times import AnswerTimes
from coordinator.rounds.queue import postponed
from edge_sdk.protocol.exchange_id import ExchangeId


def invited_again_s(model: Model, device: str, most: int = 9) -> list[float]:
    """How long after this moment a device that stays silent is invited again, until the deadline; the model stays."""
    copy, times_s = deepcopy(model), []
    while len(times_s) < most:
        found = [each for each in copy.wait_until_due() if isinstance(each, Invite) and device in each.devices]
        if copy.now_s >= model.state.due_s or copy.over:
            break
        times_s += [copy.now_s - model.now_s] * len(found)
    return times_s


def wait(model: Model, seconds: float) -> None:
    """Time passes, and everything happens that is due."""
    until_s = model.now_s + seconds
    while (rounds.rounds_due_s(model.state) or math.inf) <= until_s:
        model.wait_until_due()
    model.now_s = until_s


def after_rounds(model: Model, computing_s: Sequence[float]) -> Model:
    """A round for each of these times in which all devices compute in the first exchange."""
    for each_s in computing_s:
        model.now_s += each_s
        through(model, *sorted(model.state.members))
        through(model, *sorted(model.state.members))  # the second exchange
    return model


@pytest.mark.parametrize(
    ("computing_s", "times_s"),
    [
        ([], [2.0, 6.0, 14.0, 30.0]),
        ([1.0], [2.0, 6.0, 14.0, 30.0]),  # by the first time it should have answered
        ([10.0], [15.0, 19.0, 27.0, 43.0]),
        ([10.0, 20.0, 12.0], [18.0, 22.0, 30.0, 46.0]),  # the shorter of the last two
        ([20.0], [30.0, 34.0, 42.0, 58.0]),
        ([30.0], [15.0, 19.0, 27.0, 43.0]),  # an answer to the second invitation is to come in time
        ([50.0], [2.0, 6.0, 14.0, 30.0]),  # none would: as if nothing were known
    ],
)
def test_a_device_that_computes_for_long_is_not_invited_again_meanwhile(computing_s, times_s):
    model = after_rounds(joined(2, 2, rounds=9), computing_s)
    model.answer("b")
    assert invited_again_s(model, "a") == pytest.approx(times_s)


def test_a_look_at_devices_that_still_compute_is_put_off_until_one_of_them_is_overdue():
    model = after_rounds(joined(2, 2, rounds=9), [10.0])
    assert model.wait(2.0) == ()  # due now, and nobody is overdue before 15 s
    assert rounds.rounds_due_s(model.state) == pytest.approx(model.state.times.opened_at_s + 15.0)
    model.wait_until_due()
    assert rounds.rounds_due_s(model.state) == pytest.approx(model.now_s + 4.0)


def test_a_slow_device_does_not_keep_a_quick_one_from_being_invited_again():
    model = joined(3, 3, rounds=9)
    through(model, "a", "b")
    model.now_s += 20.0
    through(model, "c")
    through(model, "a", "b", "c")
    assert model.state.place == ExchangeId(1, 0)
    model.answer("a")
    assert invited_again_s(model, "b")[:3] == [2.0, 6.0, 14.0]
    assert invited_again_s(model, "c")[0] == pytest.approx(30.0)
    model.now_s += 20.0
    model.answer("c")
    assert invited_again_s(model, "b")[0] == 0.0


def test_where_messages_get_lost_everybody_is_invited_again_soon():
    """Some devices are late: their Assign was lost.  Most are late: they have more to compute."""
    model = after_rounds(joined(3, 3, rounds=30), [10.0])
    assert model.state.times.lost_round is None
    model.now_s += 10.0
    through(model, "a", "b")
    wait(model, 13.0)  # it is invited again after 15 s, and its second computation takes 8 s
    through(model, "c")
    assert model.state.times.lost_round == 1
    through(model, "a", "b", "c")
    assert invited_again_s(model, "a") == [2.0, 6.0, 14.0, 30.0]
    after_rounds(model, [10.0] * 11)
    assert invited_again_s(model, "a")[0] == pytest.approx(15.0)
    after_rounds(model, [20.0])
    assert model.state.times.lost_round == 1


def test_losses_do_not_make_the_wait_grow():
    """Of 26 devices that need 3 s each tenth Assign is lost; a round with one loss in a row lasts for 5 s, with two 9 s."""
    random, model = Random(5), joined(26, 26, rounds=60, exchanges=1)
    for _ in range(50):
        lost = {device for device in sorted(model.state.members) if random.random() < 0.1}
        model.now_s += 3.0
        through(model, *sorted(model.state.members - lost))
        while lost:
            found = [each for each in model.wait_until_due() if isinstance(each, Invite)]
            come = {device for each in found for device in each.devices if random.random() > 0.1} & lost
            model.now_s += 3.0 if come else 0.0
            through(model, *sorted(come))
            lost -= come
    assert model.now_s / 50 < 8.0  # 9.4 s if devices that compute were left out here, too


def test_only_answers_to_the_invitation_of_the_opening_are_timed():
    model = joined(4, 3, rounds=9)
    through(model, "a")
    model.join("b")  # it was restarted
    model.feed(rounds.Declined("c", None, model.now_s))
    model.now_s += 30.0
    model.feed(rounds.Willing("c", model.now_s))
    through(model, "b", "c", "d")
    assert set(model.state.times.known_s[0]) == {"a", "d"}
    assert set(model.state.times.known_s[0]) <= model.state.times.timed


def test_of_an_exchange_that_was_interrupted_no_times_are_kept():
    model = joined(2, 2, rounds=9)
    model.now_s += 10.0
    model.state = postponed(model.state, 5.0)
    through(model, "a", "b")
    assert model.state.times.known_s == {0: {}}
    again = Model(model.policy, round=1)
    again.state = rounds.resumed(model.policy, ExchangeId(1, 0), frozenset())
    again.join("a")
    again.join("b")
    assert again.state.phase is RoundPhase.COLLECTING
    assert again.state.times.timed == frozenset()


def test_times_of_devices_that_left_are_forgotten():
    model = after_rounds(joined(3, 2, rounds=9), [10.0])
    model.leave("c")
    after_rounds(model, [10.0])
    assert set(model.state.times.known_s[0]) == {"a", "b"}


@pytest.mark.parametrize("gone", ["withheld", "left", "declined"])
def test_a_device_that_says_why_it_does_not_answer_was_not_lost(gone):
    model = after_rounds(joined(4, 2, rounds=9), [10.0])
    event = {
        "withheld": rounds.Withheld("d", model.state.place, "diverged"),
        "left": rounds.Left("d", model.now_s),
        "declined": rounds.Declined("d", None, model.now_s),
    }[gone]
    model.feed(event)
    model.now_s += 30.0
    through(model, "a", "b", "c")
    assert model.state.times.lost_round is None


def test_a_device_that_misses_the_deadline_was_lost():
    model = after_rounds(joined(4, 2, rounds=9), [10.0])
    for device in "abc":
        model.answer(device)
    while model.state.phase is RoundPhase.COLLECTING:
        model.wait_until_due()
    assert model.state.times.lost_round == 1


def test_where_some_answers_suffice_the_others_were_not_lost():
    """The exchange closes with three answers, before it is known whether the fourth is late."""
    times, devices = AnswerTimes(), frozenset("abcd")
    for round_ in range(3):
        times = times.opened(ExchangeId(round_, 0), devices, now_s=0.0, deadline_s=60.0)
        for device in "abcd" if round_ == 0 else "abc":
            times = times.answered(device, 10.0)
        times = times.closed(devices)
        assert times.lost_round is None
    assert times.opened(ExchangeId(3, 0), devices, 0.0, 60.0).overdue_at_s("d") == pytest.approx(15.0)


def test_a_slow_device_keeps_no_other_one_from_being_left_out():
    """It needs half of the deadline, so that it is invited again before it can have answered; nothing is lost."""
    model = joined(4, 4, rounds=9)
    for _ in range(5):
        wait(model, 10.0)
        through(model, "a", "b", "c")
        wait(model, 20.0)
        through(model, "d")
        through(model, *"abcd")
    assert model.state.times.lost_round is None
    assert invited_again_s(model, "a")[0] == pytest.approx(15.0)


@pytest.mark.parametrize(("takes_s", "lost_round"), [(14.0, None), (21.0, None), (25.0, 1)])
def test_who_answers_soon_after_the_second_invitation_was_only_slow(takes_s, lost_round):
    """It is invited again after 15 s, and takes 10 s as a rule."""
    model = after_rounds(joined(4, 4, rounds=9), [10.0])
    wait(model, 10.0)
    through(model, "a", "b", "c")
    wait(model, takes_s - 10.0)
    through(model, "d")
    assert model.state.times.lost_round == lost_round
