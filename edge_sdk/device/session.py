"""The session of a device in a federation, as a pure state machine that takes events and returns commands.

It has no clock, thread, socket or randomness.  Events carry the time as a field, and the code that carries out the
commands adds a random delay to repeated hellos.

A device sends Hello until it is welcomed.  If it lacks the public set, it fetches the set and sends Hello again.  It
computes the exchanges that it is assigned, and sends each upload again until the coordinator's receipt for it arrives.
A newer Assign replaces an older one, whatever the device is doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.state_machine import SAME, Rule, StateMachine

HELLO_FIRST_S, HELLO_MOST_S = 1.0, 30.0
"""A Hello without an answer is repeated after 1, 2, 4 ... 30 s."""
HELLOS_SOON, HELLO_LATER_S = 20, 900.0
"""After this many Hellos without an answer, about ten minutes, the waits double again up to 900 s: a coordinator that
starts announces itself, and is answered at once."""
RESEND_FIRST_S, RESEND_MOST_S = 4.0, 60.0
"""An upload without a receipt is sent again after 4, 8 ... 60 s."""
AGAIN_S = 1.0
"""The minimum time between two answers to the coordinator's statuses, and between two resends of an upload.  Without
it, forged statuses would cause a flood, and an Assign that crosses the upload a second copy."""
IDLE_HELLO_S, IDLE_MOST_S = 60.0, 3600.0
"""A device that receives no Assign for this long sends Hello again, and then after 120, 240 ... 3600 s.  Its Assign may
be lost, or the coordinator may have restarted unnoticed or counts the device as away.  The waits grow, because rounds
can be hours apart."""

MISSED_THE_END = (
    "it finished without this device's closing exchange, so the model keeps what it learnt, but lacks the last "
    "round's result"
)
"""Why a session ends without success although the run succeeded."""

BEFORE_FIRST = ExchangeId(-1, 0)
"""An id that is smaller than that of the first exchange of a run."""


class SessionPhase(str, Enum):
    """A device's activity."""

    JOINING = "joining"
    FETCHING = "fetching"
    IDLE = "idle"
    WORKING = "working"
    REPORTING = "reporting"
    DONE = "done"
    REFUSED = "refused"


TAKING_PART = frozenset({SessionPhase.FETCHING, SessionPhase.IDLE, SessionPhase.WORKING, SessionPhase.REPORTING})
"""The phases of a device that the coordinator has welcomed since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The state of a session between two events."""

    phase: SessionPhase = SessionPhase.JOINING
    linked: bool = False
    epoch: int = -1
    """The epoch of the coordinator that welcomed this device, or -1 before a Welcome."""
    run: bytes = b""
    """The id of the run that this device was welcomed to, or empty before a Welcome."""
    exchange_id: ExchangeId = BEFORE_FIRST
    """The newest exchange that this device has begun."""
    unfinished: bool = False
    """Whether the upload of that exchange is not stored yet."""
    closing: bool = False
    """Whether it is the closing exchange."""
    pending: bool = False
    """Whether its upload is stored without a receipt yet; the upload may be older than the last restart."""
    retry_at_s: float = 0.0
    """When to send a Hello or the upload again."""
    retry_wait_s: float = 0.0
    """The length of the current wait."""
    hellos: int = 0
    """Hellos without an answer since the link came up."""
    called_at_s: float | None = None
    """When it last sent a Hello because of a coordinator's status, if ever."""
    resent_at_s: float | None = None
    """When it last resent an upload because the link came up, or because of a coordinator's status, if ever."""
    owes_hello_at_s: float | None = None
    """When to answer a status that came within AGAIN_S of that Hello, or None if no answer is due."""
    reason: str = ""
    """Why the session failed; empty while it lasts, and after success."""


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
    """The coordinator accepted this device."""

    epoch: int
    now_s: float
    lacks_public_set: bool = False
    """Whether this device lacks the public set that the method needs, or has not announced that it has the set."""
    run: bytes = b""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The public set is complete."""

    now_s: float


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """The coordinator refused this device."""

    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorSeen:
    """The coordinator's status arrived."""

    epoch: int
    over: bool
    """Whether the run has ended."""
    reason: str
    """Why the run failed, or empty if it did not."""
    now_s: float
    run: bytes = b""
    """The run that the status is about, or empty if it names none, as in a simulation."""
    greet: bool = False
    """Whether the coordinator asks this device for a Hello, because it does not know it."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """An Assign arrived."""

    exchange_id: ExchangeId
    closing: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The upload of the current exchange is computed and stored."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Receipted:
    """A receipt for an upload arrived."""

    exchange_id: ExchangeId
    now_s: float


@dataclass(frozen=True, slots=True)
class HelloChanged:
    """The first samples to train on have arrived, which the next Hello announces."""

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
    | HelloChanged
    | SessionTick
)


# -- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SayHello:
    """Send a Hello."""


@dataclass(frozen=True, slots=True)
class FetchPublic:
    """Begin to fetch the public set, or request the missing blocks again if that is under way."""


@dataclass(frozen=True, slots=True)
class StartWork:
    """Begin the exchange that was just assigned, and abandon any other."""

    exchange_id: ExchangeId


@dataclass(frozen=True, slots=True)
class SendUpload:
    """Send the stored upload of this exchange, for the first time or again."""

    exchange_id: ExchangeId


@dataclass(frozen=True, slots=True)
class ForgetUpload:
    """Stop keeping the upload of this exchange for sending."""

    exchange_id: ExchangeId


@dataclass(frozen=True, slots=True)
class EndSession:
    """The session is over; an empty reason means success."""

    reason: str


SessionCommand: TypeAlias = SayHello | FetchPublic | StartWork | SendUpload | ForgetUpload | EndSession
SessionTransition: TypeAlias = tuple[SessionState, tuple[SessionCommand, ...]]


# -- what the rules do ----------------------------------------------------------------------------------------------


def _link_up(state: SessionState, event: LinkUp) -> SessionTransition:
    """Resend everything that the broker may have lost during the interruption."""
    state = _retry_hello(replace(state, linked=True, hellos=0), event.now_s)
    if state.phase is SessionPhase.REPORTING:
        state = _retry_upload(state, event.now_s, resent_at_s=event.now_s)
        return state, (SayHello(), SendUpload(state.exchange_id))
    if state.phase is SessionPhase.FETCHING:
        return state, (SayHello(), FetchPublic())
    return state, (SayHello(),)


def _link_down(state: SessionState, _event: LinkDown) -> SessionTransition:
    return replace(state, linked=False), ()


def _welcome(state: SessionState, event: Welcomed) -> SessionTransition:
    state = replace(state, epoch=event.epoch, run=event.run, owes_hello_at_s=None, hellos=0)
    if event.lacks_public_set:
        return _wait_for_assign(state, event.now_s, phase=SessionPhase.FETCHING), (FetchPublic(),)
    if state.pending:
        return _retry_upload(state, event.now_s, phase=SessionPhase.REPORTING), (SendUpload(state.exchange_id),)
    return _wait_for_assign(state, event.now_s, phase=SessionPhase.IDLE), ()


def _welcome_again(state: SessionState, event: Welcomed) -> SessionTransition:
    state = replace(state, epoch=event.epoch, run=event.run, owes_hello_at_s=None)
    if state.phase in (SessionPhase.IDLE, SessionPhase.FETCHING):
        wait_s = max(IDLE_HELLO_S, state.retry_wait_s)
        state = replace(state, retry_at_s=event.now_s + wait_s, retry_wait_s=wait_s)
    return state, ()


def _fetched(state: SessionState, event: Fetched) -> SessionTransition:
    """Send a Hello that names the set; the coordinator waits for it before it assigns work."""
    state = replace(state, phase=SessionPhase.JOINING, retry_wait_s=0.0)
    return (_retry_hello(state, event.now_s), (SayHello(),)) if state.linked else (state, ())


def _hello_refused(state: SessionState, event: HelloRefused) -> SessionTransition:
    return replace(state, phase=SessionPhase.REFUSED, reason=event.reason), (EndSession(event.reason),)


def _coordinator_seen(state: SessionState, event: CoordinatorSeen) -> SessionTransition:
    ours = event.run in (b"", state.run)
    if event.over and ours and 0 <= state.epoch <= event.epoch:
        reason = event.reason or ("" if state.closing and not state.unfinished else MISSED_THE_END)
        return replace(state, phase=SessionPhase.DONE, reason=reason), (EndSession(reason),)
    known = ours and event.epoch == state.epoch and not event.greet
    if known or not state.linked:
        return state, ()
    if state.phase is SessionPhase.JOINING and event.now_s < _answer_due_s(state):
        return replace(state, retry_at_s=_answer_due_s(state), retry_wait_s=HELLO_FIRST_S), ()
    if state.called_at_s is not None and event.now_s < state.called_at_s + AGAIN_S:
        return replace(state, owes_hello_at_s=state.called_at_s + AGAIN_S), ()
    return _call_again(state, event.now_s)


def _assign(state: SessionState, event: Assigned) -> SessionTransition:
    if event.exchange_id < state.exchange_id:
        return state, ()
    if event.exchange_id == state.exchange_id:
        return _assign_again(state, event)
    commands: tuple[SessionCommand, ...] = (StartWork(event.exchange_id),)
    if state.phase is SessionPhase.REPORTING:  # a newer Assign means that the older exchange is closed
        commands = (ForgetUpload(state.exchange_id), *commands)
    place, working = event.exchange_id, SessionPhase.WORKING
    return replace(
        state, exchange_id=place, closing=event.closing, pending=False, phase=working, unfinished=True
    ), commands


def _assign_again(state: SessionState, event: Assigned) -> SessionTransition:
    """Resend the stored upload, or compute it: a repeated Assign means that the coordinator lacks it.

    This holds even after a receipt, which may have refused an upload that was sent too early.
    """
    if state.phase is SessionPhase.WORKING:
        return state, ()
    if state.unfinished:
        return replace(state, phase=SessionPhase.WORKING), (StartWork(state.exchange_id),)
    if state.phase is SessionPhase.IDLE:
        state = _retry_upload(state, event.now_s, phase=SessionPhase.REPORTING, pending=True)
        return state, (SendUpload(state.exchange_id),)
    return _send_again(state, event.now_s)


def _work_done(state: SessionState, event: WorkDone) -> SessionTransition:
    state = _retry_upload(state, event.now_s, phase=SessionPhase.REPORTING, pending=True, unfinished=False)
    return state, (SendUpload(state.exchange_id),)


def _receipt(state: SessionState, event: Receipted) -> SessionTransition:
    if event.exchange_id < state.exchange_id:
        return state, (ForgetUpload(event.exchange_id),)
    # a receipt from before a restart; the upload is computed again, with the same bytes
    if event.exchange_id > state.exchange_id or state.phase is SessionPhase.WORKING:
        return state, ()
    forget = ForgetUpload(event.exchange_id)
    if state.closing:
        return replace(state, phase=SessionPhase.DONE, pending=False), (forget, EndSession(""))
    return _wait_for_assign(state, event.now_s, phase=SessionPhase.IDLE, pending=False), (forget,)


def _hello_changed(state: SessionState, event: HelloChanged) -> SessionTransition:
    return (_retry_hello(state, event.now_s), (SayHello(),)) if state.linked else (state, ())


def _tick_hello(state: SessionState, event: SessionTick) -> SessionTransition:
    if _owes_hello(state, event.now_s):
        return _call_again(state, event.now_s)
    if not state.linked or event.now_s < state.retry_at_s:
        return state, ()
    return _retry_hello(state, event.now_s), (SayHello(),)


def _tick_work(state: SessionState, event: SessionTick) -> SessionTransition:
    return _call_again(state, event.now_s) if _owes_hello(state, event.now_s) else (state, ())


def _tick_upload(state: SessionState, event: SessionTick) -> SessionTransition:
    if _owes_hello(state, event.now_s):
        return _call_again(state, event.now_s)
    if not state.linked or event.now_s < state.retry_at_s:
        return state, ()
    wait_s = min(max(state.retry_wait_s * 2, RESEND_FIRST_S), RESEND_MOST_S)
    state = replace(state, retry_at_s=event.now_s + wait_s, retry_wait_s=wait_s)
    hello = (SayHello(),) if wait_s == RESEND_MOST_S else ()  # no answer for a minute: perhaps this device is unknown
    return state, (*hello, SendUpload(state.exchange_id))


# -- shared pieces --------------------------------------------------------------------------------------------------


def _call_again(state: SessionState, now_s: float) -> SessionTransition:
    """Answer a coordinator's status: send Hello, and resend an upload without a receipt."""
    state = replace(state, called_at_s=now_s, owes_hello_at_s=None)
    if state.phase is not SessionPhase.REPORTING:
        return _retry_hello(state, now_s), (SayHello(),)
    state, commands = _send_again(state, now_s)
    if commands:
        state = _retry_upload(state, now_s, resent_at_s=now_s)
    return state, (SayHello(), *commands)


def _send_again(state: SessionState, now_s: float) -> SessionTransition:
    """Resend an upload without a receipt, at the earliest AGAIN_S after the last resend."""
    if state.resent_at_s is not None and now_s < (again_s := state.resent_at_s + AGAIN_S):
        return replace(state, retry_at_s=again_s, retry_wait_s=AGAIN_S), ()
    return state, (SendUpload(state.exchange_id),)


def _owes_hello(state: SessionState, now_s: float) -> bool:
    return state.linked and state.owes_hello_at_s is not None and now_s >= state.owes_hello_at_s


def _answer_due_s(state: SessionState) -> float:
    """Return the time until which a joining device waits for the answer to its last Hello.

    The status that a coordinator left on the broker arrives before its Welcome.  Another Hello in between would be
    answered by a second Welcome and a second Assign.
    """
    said_at_s = state.retry_at_s - state.retry_wait_s
    return said_at_s + HELLO_FIRST_S


def _retry_hello(state: SessionState, now_s: float) -> SessionState:
    most_s = HELLO_MOST_S if state.hellos < HELLOS_SOON else HELLO_LATER_S
    wait_s = min(max(HELLO_FIRST_S, state.retry_wait_s * 2), most_s)
    if state.phase is SessionPhase.FETCHING:
        wait_s = IDLE_HELLO_S
    if state.phase is SessionPhase.IDLE:
        wait_s = min(max(IDLE_HELLO_S, state.retry_wait_s * 2), IDLE_MOST_S)
    return replace(state, retry_at_s=now_s + wait_s, retry_wait_s=wait_s, hellos=state.hellos + 1)


def _retry_upload(state: SessionState, now_s: float, **changes: Any) -> SessionState:
    return replace(state, retry_at_s=now_s + RESEND_FIRST_S, retry_wait_s=RESEND_FIRST_S, **changes)


def _wait_for_assign(state: SessionState, now_s: float, **changes: Any) -> SessionState:
    return replace(state, retry_at_s=now_s + IDLE_HELLO_S, retry_wait_s=0.0, **changes)


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
            "sends Hello; sends an upload without a receipt again; requests missing public blocks again",
        ),
        Rule(_LIVE, LinkDown, (SAME,), _link_down, "continues to compute; sends nothing"),
        Rule(
            (_J,),
            Welcomed,
            (_F, _I, _R),
            _welcome,
            "accepted; fetches the public set if it lacks it, or sends an upload that has no receipt since a restart",
        ),
        Rule((_F, _I, _W, _R), Welcomed, (SAME,), _welcome_again, "accepted again"),
        Rule((_F,), Fetched, (_J,), _fetched, "the public set is complete: sends a Hello that names it"),
        Rule(_LIVE, HelloRefused, (_X,), _hello_refused, "over; the reason and the remedy are reported"),
        Rule(
            _LIVE,
            CoordinatorSeen,
            (SAME, _D),
            _coordinator_seen,
            "new epoch, another run, or asked for a Hello: sends Hello, and an upload without a receipt, at most once "
            "a second; end of this device's run: ends the session, with success if its closing exchange is stored",
        ),
        Rule((_I,), Assigned, (_I, _W, _R), _assign, "newer: begins it; same: sends its upload again; older: ignored"),
        Rule((_W,), Assigned, (_W,), _assign, "newer: begins it instead; same or older: ignored"),
        Rule((_R,), Assigned, (_R, _W), _assign, "newer: begins it; same: sends its upload again; older: ignored"),
        Rule((_W,), WorkDone, (_R,), _work_done, "sends the upload"),
        Rule((_I,), Receipted, (_I, _D), _receipt, "a repeated receipt; that of the closing exchange ends the session"),
        Rule(
            (_R,),
            Receipted,
            (_R, _I, _D),
            _receipt,
            "stops sending the upload; the receipt of the closing exchange ends the session",
        ),
        Rule((_W,), Receipted, (_W,), _receipt, "stops sending an older upload"),
        Rule((_J, _F, _I), HelloChanged, (SAME,), _hello_changed, "sends Hello, which announces the first samples"),
        Rule((_J, _F, _I), SessionTick, (SAME,), _tick_hello, "sends Hello again"),
        Rule((_W,), SessionTick, (_W,), _tick_work, "answers a coordinator's status that came soon after another"),
        Rule((_R,), SessionTick, (_R,), _tick_upload, "sends the upload again, and after a minute a Hello, too"),
    )
)


def advance_session(state: SessionState, event: SessionEvent) -> SessionTransition:
    """Return the next state and the commands to carry out, in order.  Pure: the same input gives the same output."""
    return SESSION_MACHINE.advance(state, event)


def session_due_s(state: SessionState) -> float | None:
    """Return the time in seconds at which the next SessionTick can matter, or None if no tick can."""
    if not state.linked or state.phase in (SessionPhase.DONE, SessionPhase.REFUSED):
        return None
    owed_s = state.owes_hello_at_s
    if state.phase is SessionPhase.WORKING:
        return owed_s
    return state.retry_at_s if owed_s is None else min(state.retry_at_s, owed_s)
