"""Worked cases of a device's session: what is sent, begun, let go of, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_model import Model

from edge_sdk.device import session
from edge_sdk.device.session import (
    HELLO_FIRST_S,
    HELLO_MOST_S,
    IDLE_HELLO_S,
    IDLE_MOST_S,
    MISSED_THE_END,
    RESEND_MOST_S,
    EndSession,
    FetchPublic,
    ForgetUpload,
    SayHello,
    SendUpload,
    SessionPhase,
    SessionState,
    StartWork,
)
from edge_sdk.protocol.exchange_id import ExchangeId

LIVE = (SessionPhase.JOINING, SessionPhase.FETCHING, SessionPhase.IDLE, SessionPhase.WORKING, SessionPhase.REPORTING)


def at(phase: SessionPhase, round_: int = 1) -> Model:
    """A device in this phase; where it has worked, on (round_, 0)."""
    model = Model()
    model.link()
    if phase is SessionPhase.JOINING:
        return model
    model.welcome(lacking=phase is SessionPhase.FETCHING)
    if phase is SessionPhase.WORKING or phase is SessionPhase.REPORTING:
        model.assign(round_)
    if phase is SessionPhase.REPORTING:
        model.work_done()
    assert model.state.phase is phase
    return model


def receipted(round_: int = 1) -> Model:
    model = at(SessionPhase.REPORTING, round_)
    model.receipt(round_)
    assert model.state.phase is SessionPhase.IDLE
    return model


def test_a_clean_session_command_by_command():
    model = Model()
    assert session.session_due_s(model.state) is None
    assert model.link() == (SayHello(),)
    assert model.welcome() == ()
    assert model.assign(0) == (StartWork((0, 0)),)
    assert session.session_due_s(model.state) is None
    assert model.work_done() == (SendUpload((0, 0)),)
    assert model.receipt(0) == (ForgetUpload((0, 0)),)
    assert model.assign(1, closing=True) == (StartWork((1, 0)),)
    assert model.work_done() == (SendUpload((1, 0)),)
    assert model.receipt(1) == (ForgetUpload((1, 0)), EndSession(""))
    assert model.state.phase is SessionPhase.DONE


# -- hello ----------------------------------------------------------------------------------------------------------


def test_hellos_back_off_while_nobody_answers():
    model = at(SessionPhase.JOINING)
    times = []
    for _ in range(8):
        assert model.wait_until_due() == (SayHello(),)
        times.append(model.now_s)
    assert times == [1, 3, 7, 15, 31, 61, 91, 121]
    assert model.state.retry_wait_s == HELLO_MOST_S


def test_a_device_that_hears_nothing_says_hello_now_and_then():
    model = at(SessionPhase.IDLE)
    times_s = []
    for _ in range(8):
        assert model.wait_until_due() == (SayHello(),)
        times_s.append(model.now_s)
        model.welcome()  # answered: the next one is due as long after it
    assert times_s == [60, 120, 240, 480, 960, 1920, 3840, 7440]  # rounds can be hours apart
    model.now_s += 10
    model.welcome()
    assert session.session_due_s(model.state) == model.now_s + IDLE_MOST_S


def test_a_tick_before_its_time_does_nothing():
    for phase in LIVE:
        model = at(phase)
        assert model.feed(session.SessionTick(0.5)) == ()


# -- the public set -------------------------------------------------------------------------------------------------


def test_a_device_without_the_public_set_fetches_it_before_anything_else():
    model = at(SessionPhase.JOINING)
    assert model.welcome(lacking=True) == (FetchPublic(),)
    assert model.state.phase is SessionPhase.FETCHING
    assert model.assign(0) == ()  # it will come again
    assert model.welcome(lacking=True) == ()  # to a hello that was sent twice
    assert model.wait_until_due() == (SayHello(),)
    assert model.now_s == IDLE_HELLO_S
    assert model.fetched() == (SayHello(),)
    assert model.state.phase is SessionPhase.JOINING
    assert model.wait_until_due() == (SayHello(),)  # until the coordinator counts on us
    assert model.now_s == IDLE_HELLO_S + 1
    assert model.welcome() == ()
    assert model.assign(0) == (StartWork((0, 0)),)


def test_a_public_set_that_is_complete_while_the_link_is_down_is_named_when_it_is_back():
    model = at(SessionPhase.FETCHING)
    model.feed(session.LinkDown())
    assert model.fetched() == ()
    assert model.link() == (SayHello(),)
    assert model.fetched() == ()
    assert model.welcome() == ()


def test_an_upload_of_before_the_restart_waits_until_the_public_set_is_back():
    model = at(SessionPhase.REPORTING)
    model.restart()
    model.link()
    assert model.welcome(lacking=True) == (FetchPublic(),)
    assert model.fetched() == (SayHello(),)
    assert model.welcome() == (SendUpload((1, 0)),)


# -- uploads --------------------------------------------------------------------------------------------------------


def test_an_upload_is_sent_again_until_it_is_receipted_and_in_the_end_with_a_hello():
    model = at(SessionPhase.REPORTING)
    sent = []
    for _ in range(6):
        commands = model.wait_until_due()
        assert commands[-1] == SendUpload((1, 0))
        sent.append((model.now_s, commands[0] == SayHello()))
    assert sent == [(4, False), (12, False), (28, False), (60, True), (120, True), (180, True)]
    assert model.state.retry_wait_s == RESEND_MOST_S
    assert model.receipt(1) == (ForgetUpload((1, 0)),)
    assert model.state.phase is SessionPhase.IDLE
    assert session.session_due_s(model.state) == 180 + IDLE_HELLO_S


@pytest.mark.parametrize("phase", [SessionPhase.WORKING, SessionPhase.REPORTING])
def test_receipts_for_other_exchanges(phase):
    model = at(phase, round_=3)
    state = model.state
    assert model.receipt(2, 5) == (ForgetUpload((2, 5)),)  # late, and still the outbox lets go of it
    assert model.receipt(3, 1) == ()  # of an earlier life that was ahead
    assert model.receipt(4, 0) == ()
    assert model.state == state


def test_a_receipt_of_an_earlier_life_does_not_stop_the_work():
    model = at(SessionPhase.WORKING)
    assert model.receipt(1) == ()
    assert model.work_done() == (SendUpload((1, 0)),)


def test_a_receipt_that_comes_twice():
    model = receipted()
    model.now_s = 30.0
    assert model.receipt(1) == (ForgetUpload((1, 0)),)
    assert model.state.phase is SessionPhase.IDLE


# -- assigns --------------------------------------------------------------------------------------------------------


def test_no_assign_counts_before_the_welcome():
    model = at(SessionPhase.JOINING)
    assert model.assign(0) == ()
    assert model.state.phase is SessionPhase.JOINING


@pytest.mark.parametrize(
    "model", [receipted(), at(SessionPhase.WORKING), at(SessionPhase.REPORTING)], ids=["idle", "working", "reporting"]
)
def test_an_older_assign_never_starts_work(model):
    for older in ((0, 0), (0, 7)):
        assert model.assign(*older, closing=True) == ()
    assert model.state.exchange_id == (1, 0)
    assert not model.state.closing


@pytest.mark.parametrize("phase", [SessionPhase.IDLE, SessionPhase.WORKING, SessionPhase.REPORTING])
@pytest.mark.parametrize("newer", [(1, 1), (2, 0)])
def test_a_newer_assign_supersedes_whatever_the_device_is_doing(phase, newer):
    model = receipted() if phase is SessionPhase.IDLE else at(phase)
    forget = (ForgetUpload((1, 0)),) if phase is SessionPhase.REPORTING else ()
    assert model.assign(*newer, closing=True) == (*forget, StartWork(newer))
    assert model.state.phase is SessionPhase.WORKING
    assert model.state.closing
    assert not model.state.pending


def test_the_same_assign_gets_the_stored_upload():
    model = at(SessionPhase.REPORTING)
    assert model.assign(1) == (SendUpload((1, 0)),)
    assert session.session_due_s(model.state) == 4.0  # the coordinator cannot hurry the retries


def test_an_assign_that_crosses_an_upload_sent_again_is_answered_once_a_second_is_over():
    model = at(SessionPhase.REPORTING)
    model.now_s = 2.0
    assert model.link() == (SayHello(), SendUpload((1, 0)))
    model.now_s = 2.25
    assert model.assign(1) == model.assign(1) == ()
    assert session.session_due_s(model.state) == 3.0
    assert model.wait_until_due() == (SendUpload((1, 0)),)
    assert session.session_due_s(model.state) == 7.0


@pytest.mark.parametrize("phase", [SessionPhase.IDLE, SessionPhase.WORKING, SessionPhase.REPORTING])
def test_statuses_of_others_make_no_flood_of_hellos(phase):
    """Whoever may publish on the coordinator's topic, or a broker that repeats what an earlier run left."""
    model = receipted() if phase is SessionPhase.IDLE else at(phase)
    model.now_s = start_s = 20.0
    answer = (SayHello(), SendUpload((1, 0))) if phase is SessionPhase.REPORTING else (SayHello(),)
    assert model.seen(1, run=b"another", over=True) == answer
    for _ in range(50):
        model.now_s += 0.01
        assert model.seen(1, run=b"another", over=True) == ()
        assert model.feed(session.SessionTick(model.now_s)) == ()
    assert session.session_due_s(model.state) == start_s + 1.0
    assert model.wait_until_due() == answer  # one of the statuses may have been true
    assert session.session_due_s(model.state) != start_s + 2.0


def test_a_welcome_answers_a_status_that_came_soon_after_the_hello():
    model = receipted()
    model.now_s = 20.0
    assert model.seen(2) == (SayHello(),)
    assert model.seen(2) == ()
    model.welcome(2)
    assert session.session_due_s(model.state) == 20.0 + IDLE_HELLO_S


def test_the_same_assign_does_not_disturb_the_work():
    model = at(SessionPhase.WORKING)
    state = model.state
    assert model.assign(1) == ()
    assert model.state == state


def test_the_same_assign_after_a_receipt_gets_the_stored_upload_again():
    """A receipt may have refused an upload that is wanted after all: sent too early, or before the invitation."""
    model = receipted()
    model.now_s = 7.0
    assert model.assign(1) == (SendUpload((1, 0)),)
    assert model.state.phase is SessionPhase.REPORTING
    assert session.session_due_s(model.state) == 11.0
    assert model.receipt(1) == (ForgetUpload((1, 0)),)


def test_the_same_assign_after_work_that_was_given_up_begins_it_again():
    """Knowledge that does not fit is as if it never came; what comes next may fit."""
    model = at(SessionPhase.WORKING)
    model.state = replace(model.state, phase=SessionPhase.IDLE)  # as the agent does it
    assert model.assign(1) == (StartWork((1, 0)),)
    assert model.work_done() == (SendUpload((1, 0)),)


# -- the link -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", LIVE)
def test_nothing_is_due_while_the_link_is_down_and_all_is_said_when_it_is_back(phase):
    model = at(phase)
    assert model.feed(session.LinkDown()) == ()
    assert model.state.phase is phase
    assert session.session_due_s(model.state) is None
    assert model.feed(session.SessionTick(1e6)) == ()
    assert model.seen(2) == ()  # heard before the link broke
    model.now_s = 1e6
    more = {SessionPhase.REPORTING: (SendUpload((1, 0)),), SessionPhase.FETCHING: (FetchPublic(),)}.get(phase, ())
    assert model.link() == (SayHello(), *more)
    due_s = {
        SessionPhase.JOINING: 2.0,
        SessionPhase.FETCHING: IDLE_HELLO_S,
        SessionPhase.IDLE: IDLE_HELLO_S,
        SessionPhase.WORKING: None,
        SessionPhase.REPORTING: 4.0,
    }[phase]
    assert session.session_due_s(model.state) == (None if due_s is None else 1e6 + due_s)


def test_work_that_ends_while_the_link_is_down_is_sent_when_it_is_back():
    model = at(SessionPhase.WORKING)
    model.feed(session.LinkDown())
    model.work_done()
    assert model.state.phase is SessionPhase.REPORTING
    assert session.session_due_s(model.state) is None
    assert model.link() == (SayHello(), SendUpload((1, 0)))


# -- restarts -------------------------------------------------------------------------------------------------------


def test_after_a_restart_an_upload_without_a_receipt_is_sent_once_welcomed():
    model = at(SessionPhase.REPORTING)
    model.restart()
    assert model.state == SessionState(epoch=1, exchange_id=ExchangeId(1, 0), pending=True)
    assert model.link() == (SayHello(),)
    assert model.receipt(1) == ()  # to what was sent before; it will be answered again
    assert model.welcome() == (SendUpload((1, 0)),)
    assert model.receipt(1) == (ForgetUpload((1, 0)),)


def test_after_a_restart_with_an_empty_outbox_the_device_waits():
    model = receipted()
    model.restart()
    model.link()
    assert model.welcome() == ()
    assert model.state.phase is SessionPhase.IDLE
    assert model.assign(0) == ()
    assert model.assign(1) == (SendUpload((1, 0)),)
    assert model.assign(1, 1) == (ForgetUpload((1, 0)), StartWork((1, 1)))


def test_the_status_that_a_coordinator_left_on_the_broker_is_no_reason_for_a_second_hello():
    model = at(SessionPhase.JOINING)
    said_at_s = model.now_s = 40.0
    assert model.link() == (SayHello(),)
    model.now_s += 0.2
    assert model.seen(3) == ()
    assert model.wait_until_due() == (SayHello(),)  # nobody had answered
    assert model.now_s == said_at_s + HELLO_FIRST_S
    assert model.welcome(3) == ()


def test_a_coordinator_that_appears_between_two_hellos_is_greeted_at_once():
    model = at(SessionPhase.JOINING)
    for _ in range(4):
        model.wait_until_due()
    assert model.state.retry_wait_s > 2 * HELLO_FIRST_S
    model.now_s += 1.5 * HELLO_FIRST_S
    assert model.seen(3) == (SayHello(),)


@pytest.mark.parametrize("phase", LIVE)
def test_a_coordinator_that_came_back_is_greeted(phase):
    model = at(phase)
    model.now_s = 2 * HELLO_FIRST_S
    upload = (SendUpload((1, 0)),) if phase is SessionPhase.REPORTING else ()
    if phase is not SessionPhase.JOINING:
        assert model.seen(1) == ()  # the one that welcomed us
    assert model.seen(2) == (SayHello(), *upload)
    assert model.state.phase is phase
    model.welcome(2)
    assert model.state.epoch == 2
    assert model.seen(2) == ()


# -- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", LIVE[1:])
@pytest.mark.parametrize("reason", ["", "the quorum cannot be reached"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_the_end_of_our_run_ends_the_session(phase, reason, epoch):
    """Epoch 2: the coordinator came back and ended without our noticing.  The closing exchange is missing."""
    model = at(phase)
    ending = EndSession(reason or MISSED_THE_END)
    assert model.seen(epoch, over=True, reason=reason) == (ending,)
    assert model.state.phase is SessionPhase.DONE
    assert model.state.reason == ending.reason


def test_the_end_is_a_success_once_the_closing_exchange_is_stored():
    model = receipted()
    model.assign(2, closing=True)
    lost = at(SessionPhase.IDLE)
    lost.assign(2, closing=True)
    assert lost.seen(1, over=True) == (EndSession(MISSED_THE_END),)  # while it is being computed
    model.work_done()  # its receipt is lost
    assert model.seen(1, over=True) == (EndSession(""),)


@pytest.mark.parametrize("phase", LIVE[1:])
@pytest.mark.parametrize("epoch", [1, 2])
def test_another_run_ends_no_session_and_is_greeted(phase, epoch):
    model = at(phase)
    model.welcome(1, run=b"first run")
    model.now_s = 2 * HELLO_FIRST_S
    upload = (SendUpload((1, 0)),) if phase is SessionPhase.REPORTING else ()
    for over in (True, False):
        assert model.seen(epoch, over=over, run=b"other run") == (SayHello(), *upload)
        model.now_s += 2 * HELLO_FIRST_S
        assert model.state.phase is phase
    assert model.seen(1, run=b"first run") == ()
    assert model.seen(1, over=True, reason="too few", run=b"first run") == (EndSession("too few"),)


@pytest.mark.parametrize("phase", LIVE[1:])
def test_a_coordinator_that_does_not_know_this_device_gets_a_hello(phase):
    model = at(phase)
    model.welcome(1, run=b"first run")
    assert model.seen(1, run=b"first run", greet=True)[:1] == (SayHello(),)
    assert model.state.phase is phase


def test_the_end_of_an_earlier_run_is_nothing_to_a_device_that_never_joined():
    model = at(SessionPhase.JOINING)
    for epoch in range(3):
        model.now_s += 2 * HELLO_FIRST_S
        assert model.seen(epoch, over=True, reason="of last week") == (SayHello(),)
    assert model.state.phase is SessionPhase.JOINING
    assert model.welcome(1) == ()


def test_the_end_of_an_earlier_life_of_the_coordinator_is_nothing_either():
    model = at(SessionPhase.JOINING)
    model.welcome(5)
    assert model.seen(4, over=True, reason="killed") == (SayHello(),)
    assert model.state.phase is SessionPhase.IDLE


def test_a_device_that_comes_back_after_the_end_hears_of_it():
    model = receipted()
    model.restart()
    model.link()
    assert model.seen(1, over=True) == (EndSession(MISSED_THE_END),)


@pytest.mark.parametrize("phase", LIVE)
def test_a_refusal_ends_the_session(phase):
    model = at(phase)
    assert model.feed(session.HelloRefused("wrong classes")) == (EndSession("wrong classes"),)
    assert model.state.phase is SessionPhase.REFUSED
    for event in (session.LinkUp(9.0), session.Welcomed(1, 9.0), session.Assigned((9, 0), False, 9.0)):  # noqa: FBT003  # closing
        assert model.feed(event) == ()
    assert session.session_due_s(model.state) is None
