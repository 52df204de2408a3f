"""Any sequence of events whatever: the device keeps its promises, and when faults stop, it comes to its end."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from session_model import OVER, Model

from edge_sdk.device import session
from edge_sdk.device.session import SessionPhase
from edge_sdk.protocol.state_machine import SAME

chaos = st.binary(min_size=200, max_size=600)
"""Three bytes an event: up to 200 events."""


def play(model: Model, script: bytes) -> None:
    for kind, what, more in zip(script[::3], script[1::3], script[2::3], strict=False):
        place = (what % 4, what // 4 % 3)
        if kind < 10:
            model.fetched()
        elif kind < 40:
            model.assign(*place, closing=more % 8 == 0)
        elif kind < 90:
            model.work_done()
        elif kind < 120:
            model.receipt(*(model.state.exchange_id if more % 2 else place))
        elif kind < 150:
            model.now_s += what / 4
            model.feed(session.SessionTick(model.now_s))
        elif kind < 160 and session.session_due_s(model.state) is not None:
            model.wait_until_due()
        elif kind < 200:
            model.link()
        elif kind < 215:
            model.feed(session.LinkDown())
        elif kind < 240:
            model.welcome(what % 3, lacking=more % 8 == 0)
        elif kind < 250:
            model.seen(what % 3, over=more % 32 == 0, reason="failed" if more % 64 == 0 else "")
        elif kind < 252:
            model.restart()
        elif kind < 253:
            model.feed(session.HelloRefused("no"))
        elif (
            kind < 255 and model.state.phase is SessionPhase.WORKING
        ):  # an Assign whose knowledge did not fit: see Agent
            model.state = replace(model.state, phase=SessionPhase.IDLE)


@examples(300)
@given(chaos)
def test_promises_hold_whatever_happens(script):
    play(Model(), script)


@examples(150)
@given(chaos, st.integers(0, 3), st.booleans())
def test_a_device_comes_to_its_end_once_faults_stop(script, round_, lacking):
    """A coordinator that answers each hello, sends each Assign until it has the upload, and receipts what it has."""
    model = Model()
    play(model, script)
    places = [(round_, exchange) for exchange in range(3)] + [(4, 0)]
    places = [place for place in places if place >= model.state.exchange_id]
    done = 0
    for _ in range(60):
        if model.state.phase in OVER:
            break
        if not model.state.linked:
            commands = model.link()
        elif model.state.phase is SessionPhase.JOINING:
            commands = model.wait_until_due()
            assert session.SayHello() in commands
            commands += model.welcome(3, lacking=lacking)
            lacking = False
        elif model.state.phase is SessionPhase.FETCHING:
            commands = model.fetched()
            assert commands == (session.SayHello(),)
        elif model.state.phase is SessionPhase.WORKING:
            commands = model.work_done()
        elif model.state.phase is SessionPhase.REPORTING:
            commands = model.wait_until_due()
            assert session.SendUpload(model.state.exchange_id) in commands
            if model.state.exchange_id == places[done]:
                done += 1
            commands += model.receipt(*model.state.exchange_id)
        else:
            commands = model.assign(*places[done], closing=places[done] == (4, 0))
            assert commands
    assert model.state.phase in OVER


def test_every_arrow_of_the_drawing_is_taken_by_some_device():
    """What docs/reference/states.md draws can happen, and nothing else does."""
    rng = random.Random(0)
    drawn = {
        (phase, rule.event, after)
        for rule in session.SESSION_MACHINE.rules
        for phase in rule.phases
        for after in rule.then
        if after not in (phase, SAME)
    }
    taken: set[object] = set()
    for _ in range(2000):
        model = Model()
        play(model, rng.randbytes(400))
        taken |= model.arrows
        if taken == drawn:
            return
    assert taken == drawn
