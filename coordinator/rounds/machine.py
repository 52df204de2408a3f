"""The rounds of a federation, as a pure state machine: events in, commands out.

All code that changes the state of a round is in this package, without a clock, a socket, a disk or a method: this
module has the table of rules, rules.py what each rule does, and exchanges.py the steps that rules share.  Events carry
the time.  The caller carries out the commands in the order in which they are returned.

A run gathers devices, and then opens one exchange after another.  An exchange is *collecting* uploads until all
invited devices have answered, or until the deadline if there is a quorum.  It is *finishing* while the method reduces
the uploads.  The exchanges of a round, the rounds, and the closing exchange follow one another.  The uploads of the
closing exchange carry metrics only.

An upload counts only once it is durable: `Received` is answered by `Persist`, and only `Persisted` leads to `Fold`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from coordinator.rounds import rules
from coordinator.rounds.state import (
    Broken,
    CancelDrain,
    Declined,
    DeviceRefused,
    Drain,
    Finished,
    Joined,
    Left,
    Lost,
    Persisted,
    Received,
    Rested,
    RoundEvent,
    RoundPhase,
    RoundPolicy,
    RoundState,
    RoundTick,
    RoundTransition,
    Willing,
    Withheld,
)
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.state_machine import SAME, Rule, StateMachine

_G, _C, _F, _R, _D, _X, _S = (
    RoundPhase.GATHERING,
    RoundPhase.COLLECTING,
    RoundPhase.FINISHING,
    RoundPhase.RESTING,
    RoundPhase.DONE,
    RoundPhase.FAILED,
    RoundPhase.DRAINED,
)

ROUND_MACHINE: StateMachine[RoundState] = StateMachine(
    (
        Rule(
            (_G,),
            Joined,
            (_G, _C, _F, _R, _D, _S),
            rules.gather,
            "counted; the first exchange opens when all devices are here",
        ),
        Rule(
            (_G,),
            RoundTick,
            (_G, _C, _F, _R, _D, _S),
            rules.gather_tick,
            "the first exchange opens with a quorum once the join grace is over",
        ),
        Rule((_G,), DeviceRefused, (_G, _X), rules.gather_gone, "fails at once when the quorum is out of reach"),
        Rule((_G,), Left, (_G, _X), rules.gather_gone, "fails at once when the quorum is out of reach"),
        Rule(
            (_G,),
            Drain,
            (_G, _X, _S),
            rules.drain_gathering,
            "of a device: it is notified, and not waited for; of the run: it stops, and a restart resumes it",
        ),
        Rule((_G, _C, _F, _R), CancelDrain, (SAME,), rules.cancel_drain, "no longer draining"),
        Rule(
            (_G,),
            Received,
            (_G,),
            rules.receive_gathering,
            "answered late or duplicate; otherwise ignored, and the device sends it again",
        ),
        Rule(
            (_C, _F),
            Joined,
            (SAME,),
            rules.join_running,
            "new devices wait for the next exchange, or with buffers get the newest version; invited ones get their "
            "Assign again",
        ),
        Rule(
            (_C,),
            Drain,
            (_C, _S),
            rules.drain,
            "of a device: notified at the end of the round, and not invited to the next; of the run: stops there, or "
            "at once if the round waits for devices that decline",
        ),
        Rule(
            (_F,),
            Drain,
            (_F,),
            rules.drain,
            "of a device: notified at the end of the round, and not invited to the next; of the run: it stops there",
        ),
        Rule((_C, _F, _R), Lost, (SAME,), rules.lose, "not invited to the next exchange unless it sends something"),
        Rule((_C,), Left, (_C, _F, _D, _X), rules.leave, "no longer waited for"),
        Rule((_C,), DeviceRefused, (_C, _F, _D, _X), rules.leave, "no longer waited for"),
        Rule((_F, _R), Left, (SAME,), rules.leave_finishing, "not waited for in the next exchange"),
        Rule((_F, _R), DeviceRefused, (SAME,), rules.leave_finishing, "not waited for in the next exchange"),
        Rule((_R,), Joined, (_R,), rules.join_resting, "counted; once a quorum is here, the pace is asked again"),
        Rule(
            (_R,),
            Drain,
            (_R, _S),
            rules.drain_resting,
            "of a device: it is notified, and not waited for; of the run: it stops, and a restart resumes it",
        ),
        Rule((_R,), RoundTick, (_R,), rules.rest_tick, "the pace is asked again when its time has come"),
        Rule(
            (_R,),
            Rested,
            (_R, _C, _F, _D, _X, _S),
            rules.rested,
            "the round opens if the pace allows it and a quorum is here; if too few are here it is skipped, and tried "
            "again later",
        ),
        Rule(
            (_R,),
            Received,
            (_R,),
            rules.receive_resting,
            "persisted if a skipped exchange had invited the device, or with buffers as while they are open; otherwise "
            "answered late or duplicate",
        ),
        Rule(
            (_R,),
            Withheld,
            (_R,),
            rules.withhold_resting,
            "answered late or duplicate; with buffers, the device gets work once the rounds open",
        ),
        Rule(
            (_R,),
            Persisted,
            (_R, _F),
            rules.fold_resting,
            "counted once; the exchange closes when it is tried again, and a buffer once it is full",
        ),
        Rule((_R,), Declined, (_R,), rules.note_decline, "not invited until it is Willing, or for this round"),
        Rule(
            (_R,),
            Willing,
            (_R,),
            rules.consent_resting,
            "invited again; once a quorum is here, the pace is asked again",
        ),
        Rule(
            (_C,),
            Received,
            (_C, _F),
            rules.receive,
            "persisted if new and invited, also before a restart or a skip; otherwise answered late, duplicate or "
            "refused; with buffers, a late device gets the newest version",
        ),
        Rule((_F, _D, _X), Received, (SAME,), rules.receive_closed, "answered late or duplicate"),
        Rule(
            (_C,),
            Withheld,
            (_C, _F, _R, _D, _X, _S),
            rules.withhold,
            "no longer waited for in this exchange; if the quorum is all devices, it becomes one smaller",
        ),
        Rule((_F, _D, _X), Withheld, (SAME,), rules.receive_closed, "answered late or duplicate"),
        Rule(
            (_C,),
            Declined,
            (_C, _F, _D),
            rules.decline,
            "no longer waited for, nor invited until it is Willing, or for this round; where the round asks a fixed "
            "number of devices, another one is invited; if the quorum is all devices, it becomes one smaller",
        ),
        Rule((_G, _F), Declined, (SAME,), rules.note_decline, "not invited until it is Willing, or for this round"),
        Rule((_G, _C, _F), Willing, (SAME,), rules.consent, "waited for again if the exchange is open"),
        Rule((_C,), Persisted, (_C, _F, _D), rules.count, "counted once; the last upload closes the exchange"),
        Rule((_F, _D, _X), Persisted, (SAME,), rules.receive_closed, "too late to count; answered late or duplicate"),
        Rule(
            (_C,),
            RoundTick,
            (_C, _F, _R, _D, _X, _S),
            rules.tick,
            "silent devices are invited again; at the deadline the exchange closes if there is a quorum; a deadline "
            "without one counts unless a device has come that was not asked yet; rounds without an end skip the "
            "exchange where others fail",
        ),
        Rule(
            (_F,),
            Finished,
            (_C, _R, _X, _S),
            rules.next_exchange,
            "the next exchange, the next round or the closing exchange opens, or the run stops",
        ),
        Rule((_G, _C, _F, _R), Broken, (_X,), rules.break_off, "the method, the broker or the ledger has failed"),
    )
)


def advance_rounds(state: RoundState, event: RoundEvent) -> RoundTransition:
    """The next state and the commands to carry out, in order.  Pure: same input, same output."""
    return ROUND_MACHINE.advance(state, event)


def resumed(
    policy: RoundPolicy,
    place: ExchangeId,
    folded: frozenset[str],
    *,
    asked: int = 0,
    answered: int = 0,
    gone: frozenset[str] = frozenset(),
    known: frozenset[str] = frozenset(),
    stopping: bool = False,
    enough: bool = False,
    counted_to: Mapping[str, int] | None = None,
    ahead: tuple[Persisted, ...] = (),
) -> RoundState:
    """The state after a restart: gathering again, at an exchange that has durable uploads of the devices in `folded`.

    asked, answered: the counts of RoundState when the last round ended.  gone: devices that an operator took out.
    known: devices that took part before the restart; each of them may have been invited to the open exchange.
    stopping: an operator stops the run at the end of this round.  enough: only the closing exchange is left,
    because a budget is spent or a target is reached.  counted_to, ahead: of RoundState, with a buffer.
    `place` is one past the last exchange of a round if all its exchanges are closed but its end is not recorded.
    """
    state = RoundState(
        policy=policy,
        place=place,
        asked=asked,
        answered=answered,
        gone=gone,
        stopping=stopping,
        counted_to=counted_to or {},
        ahead=ahead,
        asked_to=place.round,
    )
    if place.exchange == policy.exchanges:
        following = policy.rounds if enough else place.round + 1
        return replace(state, place=ExchangeId(following, 0), unrecorded=place.round)
    return replace(state, folded=folded, earlier=known)


def rounds_due_s(state: RoundState) -> float | None:
    """The time in s at which the next RoundTick can change something, or None if only another event can."""
    if state.phase is RoundPhase.COLLECTING:
        return min(state.due_s, state.retry_at_s) if state.waited_for else state.due_s
    if state.phase is RoundPhase.GATHERING and state.quorum_here:
        return state.opens_at_s if state.opens_at_s is not None and not state.all_here else 0.0
    if state.phase is RoundPhase.RESTING and state.rest_until_s < math.inf:
        return state.rest_until_s
    return None
