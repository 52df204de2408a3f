"""A device's side of a federation, as a pure state machine: events in, commands out.

No clock, thread, socket or randomness: time comes in as a field of the events, and the one random thing, the jitter of
repeated hellos, is left to whoever carries the commands out.

A device says hello until it is welcomed, fetches the public set where it lacks it (and says hello anew), works on what
it is assigned, and sends each upload again until a receipt of the coordinator's lets go of it.  A newer Assign
supersedes an older one, whatever the device is doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from edge_sdk.protocol.state_machine import SAME, Rule, StateMachine

HELLO_FIRST_S, HELLO_MOST_S = 1.0, 30.0
"""A hello is repeated after 1, 2, 4 ... 30 s while nobody answers."""
RESEND_FIRST_S, RESEND_MOST_S = 4.0, 60.0
"""An upload without a receipt is sent again after 4, 8 ... 60 s."""
IDLE_HELLO_S = 60.0
"""A device that hears nothing for this long says hello again: its Assign may be lost, it was counted as away, or the
coordinator came back without its noticing."""


class SessionPhase(str, Enum):
    """What a device is doing."""

    JOINING = "joining"
    FETCHING = "fetching"
    IDLE = "idle"
    WORKING = "working"
    REPORTING = "reporting"
    DONE = "done"
    REFUSED = "refused"


Place: TypeAlias = tuple[int, int]
"""(round, exchange)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """All that a session must remember between two events."""

    phase: SessionPhase = SessionPhase.JOINING
    linked: bool = False
    epoch: int = -1
    """Of the coordinator that welcomed us."""
    place: Place = (-1, 0)
    """The newest exchange that we have begun."""
    unfinished: bool = False
    """No upload of `place` is stored yet."""
    closing: bool = False
    pending: bool = False
    """The outbox holds an upload of `place` without a receipt (after a restart: from before it)."""
    retry_at_s: float = 0.0
    retry_wait_s: float = 0.0
    reason: str = ""


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The transport is connected and subscribed."""

    now_s: float


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The transport lost the broker."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The coordinator took us in."""

    epoch: int
    now_s: float
    lacking: bool = False
    """The public set that the method needs is not here, or the coordinator does not know yet that it is."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The public set is complete."""

    now_s: float


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """The coordinator will not have us."""

    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorSeen:
    """The coordinator announced itself."""

    epoch: int
    over: bool
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Assigned:
    """An Assign arrived."""

    place: Place
    closing: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The upload of the present exchange stands in the outbox."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Receipted:
    """The coordinator answered an upload."""

    place: Place
    now_s: float


@dataclass(frozen=True, slots=True)
class SessionTick:
    """Time passed."""

    now_s: float


SessionEvent: TypeAlias = (
    LinkUp
    | LinkDown
    | Welcomed
    | Fetched
    | HelloRefused
    | CoordinatorSeen
    | Assigned
    | WorkDone
    | Receipted
    | SessionTick
)


# -- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SayHello:
    """Send Hello."""


@dataclass(frozen=True, slots=True)
class FetchPublic:
    """Begin to fetch the public set; if that is under way, ask anew for what was on its way."""


@dataclass(frozen=True, slots=True)
class StartWork:
    """Begin the exchange that was just assigned; abandon any other."""

    place: Place


@dataclass(frozen=True, slots=True)
class SendUpload:
    """Send the stored bytes of this exchange's upload (again)."""

    place: Place


@dataclass(frozen=True, slots=True)
class ForgetUpload:
    """The outbox may let go of this exchange's upload."""

    place: Place


@dataclass(frozen=True, slots=True)
class EndSession:
    """The session is over; an empty reason is success."""

    reason: str


SessionCommand: TypeAlias = SayHello | FetchPublic | StartWork | SendUpload | ForgetUpload | EndSession
SessionTransition: TypeAlias = tuple[SessionState, tuple[SessionCommand, ...]]


# -- what the rules do ----------------------------------------------------------------------------------------------


def _link_up(state: SessionState, event: LinkUp) -> SessionTransition:
    """Whatever the broker forgot meanwhile, a hello and our own resending repair it."""
    state = _retry_hello(replace(state, linked=True), event.now_s)
    if state.phase is SessionPhase.REPORTING:
        return _retry_upload(state, event.now_s), (SayHello(), SendUpload(state.place))
    if state.phase is SessionPhase.FETCHING:
        return state, (SayHello(), FetchPublic())
    return state, (SayHello(),)


def _link_down(state: SessionState, _event: LinkDown) -> SessionTransition:
    return replace(state, linked=False), ()


def _welcome(state: SessionState, event: Welcomed) -> SessionTransition:
    state = replace(state, epoch=event.epoch)
    if event.lacking:
        return _wait(replace(state, phase=SessionPhase.FETCHING), event.now_s), (FetchPublic(),)
    if state.pending:
        return _retry_upload(replace(state, phase=SessionPhase.REPORTING), event.now_s), (SendUpload(state.place),)
    return _wait(replace(state, phase=SessionPhase.IDLE), event.now_s), ()


def _welcome_again(state: SessionState, event: Welcomed) -> SessionTransition:
    state = replace(state, epoch=event.epoch)
    return (_wait(state, event.now_s) if state.phase in (SessionPhase.IDLE, SessionPhase.FETCHING) else state), ()


def _fetched(state: SessionState, event: Fetched) -> SessionTransition:
    """The coordinator counts on us only once a hello names the set."""
    state = replace(state, phase=SessionPhase.JOINING, retry_wait_s=0.0)
    return (_retry_hello(state, event.now_s), (SayHello(),)) if state.linked else (state, ())


def _turned_away(state: SessionState, event: HelloRefused) -> SessionTransition:
    return replace(state, phase=SessionPhase.REFUSED, reason=event.reason), (EndSession(event.reason),)


def _seen(state: SessionState, event: CoordinatorSeen) -> SessionTransition:
    if event.over and 0 <= state.epoch <= event.epoch:  # else it is what an earlier run left behind
        return replace(state, phase=SessionPhase.DONE, reason=event.reason), (EndSession(event.reason),)
    if event.epoch == state.epoch or not state.linked:
        return state, ()
    if state.phase is SessionPhase.REPORTING:
        return _retry_upload(state, event.now_s), (SayHello(), SendUpload(state.place))
    return _retry_hello(state, event.now_s), (SayHello(),)


def _assign(state: SessionState, event: Assigned) -> SessionTransition:
    if event.place < state.place:
        return state, ()
    if event.place == state.place:
        return _assign_again(state, event)
    commands: tuple[SessionCommand, ...] = (StartWork(event.place),)
    if state.phase is SessionPhase.REPORTING:  # the newer Assign says that the older exchange is closed
        commands = (ForgetUpload(state.place), *commands)
    state = replace(state, place=event.place, closing=event.closing, pending=False)
    return replace(state, phase=SessionPhase.WORKING, unfinished=True), commands


def _assign_again(state: SessionState, event: Assigned) -> SessionTransition:
    """The coordinator lacks our upload, whatever receipt we may have: it gets the stored bytes, or their making."""
    if state.phase is SessionPhase.WORKING:
        return state, ()
    if state.unfinished:
        return replace(state, phase=SessionPhase.WORKING), (StartWork(state.place),)
    if state.phase is SessionPhase.IDLE:
        state = _retry_upload(replace(state, phase=SessionPhase.REPORTING, pending=True), event.now_s)
    return state, (SendUpload(state.place),)


def _work_done(state: SessionState, event: WorkDone) -> SessionTransition:
    state = replace(state, phase=SessionPhase.REPORTING, pending=True, unfinished=False)
    return _retry_upload(state, event.now_s), (SendUpload(state.place),)


def _receipt(state: SessionState, event: Receipted) -> SessionTransition:
    if event.place < state.place:
        return state, (ForgetUpload(event.place),)
    if (
        event.place > state.place or state.phase is SessionPhase.WORKING
    ):  # of an earlier life; this one recomputes the same
        return state, ()
    forget = ForgetUpload(event.place)
    if state.closing:
        return replace(state, phase=SessionPhase.DONE, pending=False), (forget, EndSession(""))
    return _wait(replace(state, phase=SessionPhase.IDLE, pending=False), event.now_s), (forget,)


def _tick_hello(state: SessionState, event: SessionTick) -> SessionTransition:
    if not state.linked or event.now_s < state.retry_at_s:
        return state, ()
    return _retry_hello(state, event.now_s), (SayHello(),)


def _tick_upload(state: SessionState, event: SessionTick) -> SessionTransition:
    if not state.linked or event.now_s < state.retry_at_s:
        return state, ()
    wait_s = min(state.retry_wait_s * 2, RESEND_MOST_S)
    state = replace(state, retry_at_s=event.now_s + wait_s, retry_wait_s=wait_s)
    hello = (SayHello(),) if wait_s == RESEND_MOST_S else ()  # unanswered for IDLE_HELLO_S: perhaps we are not known
    return state, (*hello, SendUpload(state.place))


# -- shared pieces --------------------------------------------------------------------------------------------------


def _retry_hello(state: SessionState, now_s: float) -> SessionState:
    wait_s = min(max(HELLO_FIRST_S, state.retry_wait_s * 2), HELLO_MOST_S)
    if state.phase in (SessionPhase.IDLE, SessionPhase.FETCHING):
        wait_s = IDLE_HELLO_S
    return replace(state, retry_at_s=now_s + wait_s, retry_wait_s=wait_s)


def _retry_upload(state: SessionState, now_s: float) -> SessionState:
    return replace(state, retry_at_s=now_s + RESEND_FIRST_S, retry_wait_s=RESEND_FIRST_S)


def _wait(state: SessionState, now_s: float) -> SessionState:
    return replace(state, retry_at_s=now_s + IDLE_HELLO_S, retry_wait_s=0.0)


_J, _F, _I, _W, _R = (
    SessionPhase.JOINING,
    SessionPhase.FETCHING,
    SessionPhase.IDLE,
    SessionPhase.WORKING,
    SessionPhase.REPORTING,
)
_D, _X = SessionPhase.DONE, SessionPhase.REFUSED
_LIVE = (_J, _F, _I, _W, _R)

SESSION_MACHINE: StateMachine[SessionState] = StateMachine(
    (
        Rule(
            _LIVE,
            LinkUp,
            (SAME,),
            _link_up,
            "says hello; sends an upload without a receipt, asks for public blocks again",
        ),
        Rule(_LIVE, LinkDown, (SAME,), _link_down, "goes on working; nothing is due"),
        Rule(
            (_J,),
            Welcomed,
            (_F, _I, _R),
            _welcome,
            "taken in; fetches the public set if it lacks it, or sends the upload that a restart left",
        ),
        Rule((_F, _I, _W, _R), Welcomed, (SAME,), _welcome_again, "taken in again"),
        Rule((_F,), Fetched, (_J,), _fetched, "the public set is complete: says hello anew, naming it"),
        Rule(_LIVE, HelloRefused, (_X,), _turned_away, "over; the reason and the remedy are reported"),
        Rule(_LIVE, CoordinatorSeen, (SAME, _D), _seen, "a new epoch is greeted; the end of our run ends the session"),
        Rule((_I,), Assigned, (_I, _W, _R), _assign, "newer: begun; same: the stored upload again; older: ignored"),
        Rule((_W,), Assigned, (_W,), _assign, "newer: begun instead; same or older: ignored"),
        Rule((_R,), Assigned, (_R, _W), _assign, "newer: begun; same: the stored upload again; older: ignored"),
        Rule((_W,), WorkDone, (_R,), _work_done, "the upload is sent"),
        Rule((_I,), Receipted, (_I, _D), _receipt, "one that came again; the closing one ends the session"),
        Rule((_R,), Receipted, (_R, _I, _D), _receipt, "the outbox lets go; the closing one ends the session"),
        Rule((_W,), Receipted, (_W,), _receipt, "the outbox lets go of an older upload"),
        Rule((_J, _F, _I), SessionTick, (SAME,), _tick_hello, "says hello again"),
        Rule((_R,), SessionTick, (_R,), _tick_upload, "sends the upload again, and after a minute a hello, too"),
    )
)


def advance(state: SessionState, event: SessionEvent) -> SessionTransition:
    """The next state and the commands to carry out, in order.  Pure: same input, same output."""
    return SESSION_MACHINE.advance(state, event)


def next_due_s(state: SessionState) -> float | None:
    """When the next Tick can matter; None: only messages can."""
    if state.linked and state.phase in (
        SessionPhase.JOINING,
        SessionPhase.FETCHING,
        SessionPhase.IDLE,
        SessionPhase.REPORTING,
    ):
        return state.retry_at_s
    return None
