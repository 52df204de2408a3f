"""The rounds of a federation, as a pure state machine: events in, commands out.

All code that changes the state of a round is in this module and answer_times.py, without a clock, a
socket, a disk or a method.  Events carry the time.  The caller carries out the commands in the order in
which they are returned.

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

from coordinator.rounds import buffered, selection
from coordinator.rounds.state import (
    Broken,
    CancelDrain,
    Declined,
    DeviceRefused,
    Dismiss,
    Drain,
    EndRun,
    Finished,
    Fold,
    Invite,
    Joined,
    Left,
    Lost,
    Persist,
    Persisted,
    Received,
    Reduce,
    Rest,
    Rested,
    RoundCommand,
    RoundDone,
    RoundEvent,
    RoundPhase,
    RoundPolicy,
    RoundState,
    RoundTick,
    RoundTransition,
    SendReceipt,
    Skip,
    Willing,
    Withheld,
)
from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.protocol.state_machine import SAME, Rule, StateMachine
from edge_sdk.reductions.append_only import AppendOnlySet

NOT_INVITED, NOT_BEGUN, CLOSED = (
    "not invited to this exchange",
    "this exchange has not begun",
    "this exchange is closed",
)
"""The reasons in receipts of uploads that do not count."""

# -- what the rules do ----------------------------------------------------------------------------------------------


def _gather(state: RoundState, event: Joined) -> RoundTransition:
    state = _await_rest(_joined(state, event), event.now_s)
    return _begin(state, event.now_s) if state.all_here else (state, ())


def _gather_tick(state: RoundState, event: RoundTick) -> RoundTransition:
    state = _await_rest(state, event.now_s)
    waited = state.opens_at_s is not None and event.now_s >= state.opens_at_s
    return _begin(state, event.now_s) if waited or state.all_here else (state, ())


def _gather_gone(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    """Remove a device before the first exchange.  If a quorum is no longer here, the join grace restarts later."""
    state = _parted(state, event)
    return _fail_without_quorum(state if state.quorum_here else replace(state, opens_at_s=None))


def _join_running(state: RoundState, event: Joined) -> RoundTransition:
    """A new device waits for the next exchange; a device that was invited to this one gets its Assign again."""
    state = _joined(state, event)
    if buffered.applies(state) and state.phase is RoundPhase.COLLECTING:
        return _rejoin_buffer(state, event)
    if state.phase is RoundPhase.COLLECTING and event.device in state.missing:
        state = replace(state, times=state.times.without(event.device))
        return state, (_invite(state, {event.device}, event.now_s),)
    return state, ()


def _rejoin_buffer(state: RoundState, event: Joined) -> RoundTransition:
    """Send the newest version to a device that had work, because it may have lost it; to others if there is room."""
    if event.device not in state.work:
        return _give_work(state, event.now_s)
    state = buffered.given_newest(state, frozenset({event.device}), event.now_s)
    return state, (_invite(state, {event.device}, event.now_s),)


def _leave(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    failed, commands = _fail_without_quorum(_parted(state, event))
    return (failed, commands) if commands else _close_if_complete(failed)


def _leave_finishing(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    """Remove a device while the method reduces; whether a quorum is left is checked when the next exchange opens."""
    return _parted(state, event), ()


def _drain(state: RoundState, event: Drain) -> RoundTransition:
    """Let the device, or the run, finish its round; a device that is not here has nothing to finish.

    A round that waits for declining devices may never end, so the run then stops within it.
    """
    if not event.device:
        stops = state.stalled and not state.closing
        return replace(state, stopping=True, phase=RoundPhase.DRAINED if stops else state.phase), ()
    if event.device in state.members:
        return replace(state, draining=state.draining | {event.device}), ()
    return replace(state, gone=state.gone | {event.device}), ()


def _drain_gathering(state: RoundState, event: Drain) -> RoundTransition:
    """Drain at once, because no round is open."""
    if not event.device:
        return replace(state, stopping=True, phase=RoundPhase.DRAINED), ()
    state, commands = _gather_gone(state, Left(event.device, event.now_s))
    return state, (Dismiss((event.device,)), *commands)


def _cancel_drain(state: RoundState, event: CancelDrain) -> RoundTransition:
    if not event.device:
        return replace(state, stopping=False), ()
    return replace(state, draining=state.draining - {event.device}), ()


def _lose(state: RoundState, event: Lost) -> RoundTransition:
    return replace(state, away=state.away | ({event.device} & state.members)), ()


def _receive(state: RoundState, event: Received) -> RoundTransition:
    state = _heard_late(_seen(state, event.device), event)
    if buffered.applies(state) and buffered.takes(state, event.device, event.place):
        return state, (Persist(event.device, event.place, event.upload),)
    if buffered.applies(state) and buffered.works_on(state, event.device, event.place):
        return _receive_too_old(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (_answer(state, event),)
    if event.device not in state.invited:
        return state, (SendReceipt(event.device, event.place, "refused", NOT_INVITED),)
    return state, (Persist(event.device, event.place, event.upload),)


def _receive_too_old(state: RoundState, event: Received) -> RoundTransition:
    """Give work to a device whose upload came too late to count."""
    late = _answer(state, event)
    state = replace(state, invited=state.invited - ({event.device} - state.folded))
    state, commands = _go_on(buffered.released(state, event.device), event.now_s)
    return state, (late, *commands)


def _receive_closed(state: RoundState, event: Received | Withheld | Persisted) -> RoundTransition:
    return _heard_late(_seen(state, event.device), event), (_answer(state, event),)


def _receive_gathering(state: RoundState, event: Received) -> RoundTransition:
    """Ignore an upload for an exchange that a restart has not reopened yet: the device will send it again."""
    if buffered.applies(state) and not buffered.counted(state, event.device, event.place):
        return state, ()
    if event.place < state.place or (event.place == state.place and event.device in state.folded):
        return state, (_answer(state, event),)
    return state, ()


def _withhold(state: RoundState, event: Withheld) -> RoundTransition:
    """Stop waiting for the device in this exchange, and do not invite it again: its answer would be the same."""
    state = _seen(state, event.device)
    if event.device in state.withheld and event.place == state.place:
        return state, (SendReceipt(event.device, event.place, "duplicate", ""),)
    if buffered.applies(state) and buffered.takes(state, event.device, event.place):
        return _withhold_version(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (_answer(state, event),)
    if state.closing or event.device not in state.invited:
        return state, (
            SendReceipt(event.device, event.place, "refused", "nothing was asked of it that it could withhold"),
        )
    state = replace(
        state,
        invited=state.invited - {event.device},
        withheld=state.withheld | {event.device},
        times=state.times.without(event.device),
    )
    noted = SendReceipt(event.device, event.place, "withheld", event.reason)
    if state.yield_possible:
        state, commands = _close_if_complete(state)
    else:
        state, commands = _fail_or_skip(state, _too_withheld(state, event))
    return state, (noted, *commands)


def _withhold_version(state: RoundState, event: Withheld) -> RoundTransition:
    """Ask the device again with the next version."""
    one = event.device
    state = replace(
        buffered.released(state, one), withheld=state.withheld | {one}, invited=state.invited - ({one} - state.folded)
    )
    noted = SendReceipt(one, event.place, "withheld", event.reason)
    possible = state.yield_possible
    state, commands = _close_if_complete(state) if possible else _fail_or_skip(state, _too_withheld(state, event))
    return state, (noted, *commands)


def _note_decline(state: RoundState, event: Declined) -> RoundTransition:
    """Note who declines.  A status about another round is late: that round is over."""
    state = replace(buffered.released(state, event.device), times=state.times.without(event.device))
    if event.round is None:
        return replace(state, declining=state.declining | {event.device}), ()
    if event.round == state.place.round:
        return replace(state, sitting_out=state.sitting_out | {event.device}), ()
    return state, ()


def _decline(state: RoundState, event: Declined) -> RoundTransition:
    """Continue without the device; a round with a fixed number of participants invites another one in its place."""
    state, _ = _note_decline(_seen(state, event.device), event)
    if buffered.applies(state):
        return _go_on(state, event.now_s)
    state, commands = _close_if_complete(state)
    if commands or state.wanted is None or event.device not in state.invited:
        return state, commands
    new = _asked(state, state.members - state.away - state.withheld - state.declined) - state.invited
    return (replace(state, invited=state.invited | new), (_invite(state, new, event.now_s),)) if new else (state, ())


def _consent(state: RoundState, event: Willing) -> RoundTransition:
    """Invite the device to the open exchange, unless it was invited before or enough others are."""
    one = event.device
    state = replace(_seen(state, one), declining=state.declining - {one}, sitting_out=state.sitting_out - {one})
    known = state.invited | state.withheld
    if buffered.applies(state) and state.phase is RoundPhase.COLLECTING:
        return _give_work(state, event.now_s)
    if state.phase is not RoundPhase.COLLECTING or one not in state.members or one in known:
        return state, ()
    if state.wanted is not None and len(state.folded) + len(state.missing) >= state.wanted:
        return state, ()
    state = replace(state, invited=state.invited | {one})
    return state, (_invite(state, {one}, event.now_s),)


def _fold(state: RoundState, event: Persisted) -> RoundTransition:
    """Count a durable upload, even if its device has left meanwhile: a restart would find the upload and count it."""
    if buffered.applies(state):
        return _fold_buffered(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (_answer(state, event),)
    one = event.device
    invited = state.invited if one in state.invited else state.invited | {one}
    withheld = state.withheld - {one} if one in state.withheld else state.withheld
    folded = state.folded if isinstance(state.folded, AppendOnlySet) else AppendOnlySet(state.folded)
    times = state.times.answered(one, event.now_s)
    state = replace(state, invited=invited, folded=folded.added(one), withheld=withheld, times=times)
    state, closing = _close_if_complete(state)
    return state, (Fold(event.device, event.place, event.upload), *closing)


def _fold_buffered(state: RoundState, event: Persisted) -> RoundTransition:
    """Count a durable upload in this buffer or the next one, and give its device work again."""
    if buffered.counted(state, event.device, event.place):
        return state, (_answer(state, event),)
    state, now = buffered.answered(state, event)
    first: Fold | SendReceipt = SendReceipt(event.device, event.place, "accepted", "")
    if now:
        one, folded = event.device, state.folded
        grown = folded if isinstance(folded, AppendOnlySet) else AppendOnlySet(folded)
        state = replace(state, folded=grown.added(one), invited=state.invited | {one}, withheld=state.withheld - {one})
        first = Fold(one, event.place, event.upload)
    state, commands = _go_on(state, event.now_s)
    return state, (first, *commands)


def _go_on(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version to idle devices; close a buffer that is full, or for which nobody else computes."""
    invites: tuple[RoundCommand, ...] = ()
    if len(state.folded) < state.policy.buffer:
        state, invites = _give_work(state, now_s)
    state, closing = _close_if_complete(state)
    return state, closing or invites


def _give_work(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version to idle devices."""
    state, devices = buffered.idle(state, now_s)
    return state, (_invite(state, devices, now_s),) if devices else ()


def _tick(state: RoundState, event: RoundTick) -> RoundTransition:
    policy = state.policy
    if event.now_s >= state.due_s:
        state = replace(state, away=state.away | (state.missing & state.members))
        if len(state.folded) >= state.needed:
            return _close(state, event.now_s)
        consent = state.waits_for_consent
        if consent and state.stopping and not state.closing:
            return replace(state, phase=RoundPhase.DRAINED), ()
        # too few uploads came from the invited devices: invite new ones, too
        open_to = state.members - state.withheld - state.declined
        asked = _asked(state, open_to, len(state.invited)) if not policy.buffer or state.closing else frozenset()
        nobody_yet = policy.open and state.place == FIRST and not (state.folded or state.withheld)
        excused = consent or nobody_yet or bool(asked - state.invited - state.away)
        if policy.forever and consent:
            return _fail_or_skip(state, "")
        if state.misses >= policy.patience and not excused:
            return _fail_or_skip(state, _too_silent(state))
        state = replace(
            state,
            invited=state.invited | asked,
            due_s=event.now_s + policy.deadline_s,
            misses=state.misses if excused else state.misses + 1,
            retry_at_s=event.now_s,
            times=state.times.without_all(),
        )
    if buffered.applies(state) and event.now_s >= state.retry_at_s:
        return _ask_again(state, event.now_s)
    if event.now_s >= state.retry_at_s and state.missing:
        return _invite_again(state, event.now_s)
    return state, ()


def _ask_again(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version again to silent devices that have it, and to idle ones."""
    wait_s = min(max(state.retry_wait_s, state.policy.retry_s) * 2, state.policy.deadline_s)
    state = replace(state, retry_at_s=now_s + wait_s, retry_wait_s=wait_s)
    silent = buffered.silent(state, now_s)
    state, idle = buffered.idle(buffered.given_newest(state, silent, now_s), now_s)
    return state, (_invite(state, silent | idle, now_s),) if silent | idle else ()


def _invite_again(state: RoundState, now_s: float) -> RoundTransition:
    """Invite the silent devices again, except those that probably still compute."""
    at_s = {device: state.times.overdue_at_s(device) for device in state.missing}
    silent = frozenset(device for device, each_s in at_s.items() if each_s <= now_s)
    next_s = min((each_s for each_s in at_s.values() if each_s > now_s), default=math.inf)
    if not silent:
        return replace(state, retry_at_s=next_s), ()
    wait_s = min(max(state.retry_wait_s, state.policy.retry_s) * 2, state.policy.deadline_s)
    times = state.times.invited_again(silent, now_s)
    state = replace(state, retry_at_s=min(now_s + wait_s, next_s), retry_wait_s=wait_s, times=times)
    return state, (_invite(state, silent, now_s),)


def _next(state: RoundState, event: Finished) -> RoundTransition:
    """Open the next exchange, the next round, or the closing exchange."""
    round_, exchange = state.place.round, state.place.exchange + 1
    if exchange < state.policy.exchanges and not event.void:
        return _open(replace(state, place=ExchangeId(round_, exchange), folded=frozenset()), event.now_s)
    following = state.policy.rounds if event.enough else round_ + 1
    after = replace(state, place=ExchangeId(following, 0), folded=frozenset(), sitting_out=frozenset())
    after, dismissed = _dismiss(after)
    after, commands = _open_or_stop(after, event.now_s)
    return after, (RoundDone(round_), *dismissed, *commands)


def _rested(state: RoundState, event: Rested) -> RoundTransition:
    """Open the round, wait, or skip it because too few devices are here."""
    if event.enough:
        return _open(replace(state, place=ExchangeId(state.policy.rounds, 0), folded=frozenset()), event.now_s)
    if event.until_s is not None:
        return replace(state, rest_until_s=event.until_s, resting=event.why), ()
    if state.policy.forever and not state.quorum_here:
        here = f"{len(state.members)} of the {state.policy.quorum} devices needed are here"
        return _skip(state, here, opened=False)
    return _open(state, event.now_s)


def _rest_tick(state: RoundState, event: RoundTick) -> RoundTransition:
    return _rest(state) if event.now_s >= state.rest_until_s else (state, ())


def _join_resting(state: RoundState, event: Joined) -> RoundTransition:
    return _ask_soon(_joined(state, event), event.now_s, state.policy.join_grace_s), ()


def _consent_resting(state: RoundState, event: Willing) -> RoundTransition:
    state, _ = _consent(state, event)
    return _ask_soon(state, event.now_s), ()


def _ask_soon(state: RoundState, now_s: float, in_s: float = 0.0) -> RoundState:
    """Ask the pace again: a device came, without which the round was skipped."""
    return replace(state, rest_until_s=min(state.rest_until_s, now_s + in_s)) if state.quorum_here else state


def _drain_resting(state: RoundState, event: Drain) -> RoundTransition:
    """Drain at once, because no exchange is open."""
    if not event.device:
        return replace(state, stopping=True, phase=RoundPhase.DRAINED), ()
    return _absent(state, event.device), (Dismiss((event.device,)),)


def _receive_resting(state: RoundState, event: Received) -> RoundTransition:
    """Take an upload for a skipped exchange, which is tried again; others come too late."""
    if event.place == state.place and event.device in state.invited - state.folded:
        return _seen(state, event.device), (Persist(event.device, event.place, event.upload),)
    return _receive_closed(state, event)


def _fold_resting(state: RoundState, event: Persisted) -> RoundTransition:
    """Count an upload for a skipped exchange; it closes when it is tried again."""
    if event.place != state.place or event.device in state.folded:
        return state, (_answer(state, event),)
    state = replace(state, folded=state.folded | {event.device}, invited=state.invited | {event.device})
    return state, (Fold(event.device, event.place, event.upload),)


def _break(state: RoundState, event: Broken) -> RoundTransition:
    return _fail(state, event.reason)


# -- shared pieces --------------------------------------------------------------------------------------------------


def _present(state: RoundState, device: str) -> RoundState:
    return replace(
        state,
        members=state.members | {device},
        away=state.away - {device},
        gone=state.gone - {device},
    )


def _joined(state: RoundState, event: Joined) -> RoundState:
    if event.instead_of:
        state = _replaceable(_absent(state, event.instead_of), event.instead_of)
    return _present(state, event.device)


def _parted(state: RoundState, event: DeviceRefused | Left) -> RoundState:
    state = _absent(state, event.device)
    return _replaceable(state, event.device) if isinstance(event, Left) and event.replaceable else state


def _replaceable(state: RoundState, device: str) -> RoundState:
    """Another device may join in place of this one."""
    return replace(state, gone=state.gone - {device})


def _seen(state: RoundState, device: str) -> RoundState:
    """A device that sends anything is no longer away."""
    return replace(state, away=state.away - {device}) if device in state.away else state


def _absent(state: RoundState, device: str) -> RoundState:
    return replace(
        state,
        members=state.members - {device},
        away=state.away - {device},
        gone=state.gone | {device},
        draining=state.draining - {device},
        invited=state.invited - ({device} - state.folded),
        declining=state.declining - {device},
        sitting_out=state.sitting_out - {device},
        times=state.times.without(device),
        work=buffered.released(state, device).work,
    )


def _await_rest(state: RoundState, now_s: float) -> RoundState:
    """Start the join grace for the remaining devices as soon as a quorum is here."""
    if state.quorum_here and state.opens_at_s is None:
        return replace(state, opens_at_s=now_s + state.policy.join_grace_s)
    return state


def _begin(state: RoundState, now_s: float) -> RoundTransition:
    """Open the first exchange after gathering."""
    if state.unrecorded is None:
        new = not (state.place.exchange or state.folded)
        return _open_or_stop(state, now_s) if new and state.policy.paced else _open(state, now_s)
    ended = RoundDone(state.unrecorded)
    state, commands = _open_or_stop(replace(state, unrecorded=None), now_s)
    return state, (ended, *commands)


def _open_or_stop(state: RoundState, now_s: float) -> RoundTransition:
    """Open the first exchange of a round, unless the run stops before it; the closing exchange still takes place."""
    if state.stopping and not state.closing:
        return replace(state, phase=RoundPhase.DRAINED), ()
    if state.policy.paced and not state.closing:
        return _rest(replace(state, invited=frozenset(), withheld=frozenset()))
    return _open(state, now_s)


def _dismiss(state: RoundState) -> RoundTransition:
    """Take the draining devices out at the end of a round; the closing exchange still brings them the result."""
    if not state.draining or state.closing:
        return state, ()
    devices = tuple(sorted(state.draining))
    for device in devices:
        state = _absent(state, device)
    return state, (Dismiss(devices),)


def _open(state: RoundState, now_s: float) -> RoundTransition:
    """Open an exchange; invite the present members, or all members if fewer than a quorum are present.

    Declining members are left out: their link may be metered.
    """
    if not state.quorum_possible:
        return _fail(state, _too_few(state))
    if buffered.applies(state):
        return _open_buffer(state, now_s)
    restarted = state.phase is RoundPhase.GATHERING and (state.place > FIRST or bool(state.folded))
    here = state.members - state.away
    pool = here if len(here | state.folded) >= state.policy.quorum else state.members
    pool -= state.declined
    invited = _asked(state, pool) | state.folded
    if len(state.folded) >= state.policy.expected:  # already closed before a restart: no further upload may count
        invited = frozenset(state.folded)
    state = replace(
        state,
        phase=RoundPhase.COLLECTING,
        invited=invited,
        due_s=now_s + state.policy.deadline_s,
        retry_at_s=now_s + state.policy.retry_s,
        retry_wait_s=state.policy.retry_s,
        times=state.times.opened(state.place, frozenset() if restarted else invited, now_s, state.policy.deadline_s),
        misses=0,
        unlinked_s=0.0,
        withheld=frozenset(),
    )
    state, closing = _close_if_complete(state)
    if closing or not state.missing:
        return state, closing
    return state, (_invite(state, state.missing, now_s),)


def _open_buffer(state: RoundState, now_s: float) -> RoundTransition:
    """Open the buffer of a new version, and send the version to idle devices."""
    policy, phase = state.policy, RoundPhase.COLLECTING
    state = replace(
        state,
        phase=phase,
        due_s=now_s + policy.deadline_s,
        retry_at_s=now_s + policy.retry_s,
        retry_wait_s=policy.retry_s,
        times=state.times.opened(state.place, frozenset(), now_s, policy.deadline_s),
        misses=0,
        unlinked_s=0.0,
    )
    state, waited = buffered.opened_buffer(state)
    state, commands = _go_on(state, now_s)
    return state, (*waited, *commands)


def _asked(state: RoundState, pool: frozenset[str], more: int = 0) -> frozenset[str]:
    """Choose the devices of the pool that this exchange invites; `more` is added to the number to choose."""
    policy = state.policy
    if state.wanted is None:
        return pool
    count = selection.invitations(state.wanted, state.asked, state.answered) if policy.over_select else state.wanted
    return selection.select(pool, count + more, policy.seed, state.place.round)


def _heard_late(state: RoundState, event: Received | Withheld | Persisted) -> RoundState:
    """Count an answer to a round's first exchange that came after enough others had closed it."""
    if event.device not in state.unheard or event.place.exchange or event.place >= state.place:
        return state
    return replace(state, asked=state.asked + 1, answered=state.answered + 1, unheard=state.unheard - {event.device})


def _measured(state: RoundState) -> RoundState:
    """Count the devices asked and the answers to a round's first exchange.

    If enough answers came before the deadline, nobody knows whether the other devices would have answered: they are put
    in `unheard`.  Devices that were put there in the round before and are away by now count as asked without an answer.
    """
    if state.place.exchange or state.closing or state.policy.buffer:
        return state
    unheard = state.missing if state.wanted is not None and len(state.folded) >= state.wanted else frozenset()
    silent_or_here = state.invited - (state.declined - state.folded)
    asked = state.asked + len(silent_or_here - unheard) + len(state.unheard & state.away)
    return replace(state, asked=asked, answered=state.answered + len(state.folded), unheard=unheard)


def _invite(state: RoundState, devices: frozenset[str] | set[str], now_s: float) -> Invite:
    return Invite(tuple(sorted(devices)), state.place, max(0.0, state.due_s - now_s))


def _close_if_complete(state: RoundState) -> RoundTransition:
    if len(state.folded) < state.needed:
        return state, ()
    enough = state.wanted is not None and len(state.folded) >= state.wanted
    return _close(state) if enough or not state.waited_for else (state, ())


def _close(state: RoundState, now_s: float | None = None) -> RoundTransition:
    if state.closing:
        return replace(state, phase=RoundPhase.DONE), (EndRun(""),)
    partial = len(state.folded) < state.policy.expected or not state.members <= state.folded
    reduce = Reduce(state.place, tuple(sorted(state.folded)), partial)
    times = state.times.closed(state.members, now_s)
    return replace(_measured(state), phase=RoundPhase.FINISHING, times=times), (reduce,)


def _fail_without_quorum(state: RoundState) -> RoundTransition:
    if not state.quorum_possible:
        return _fail(state, _too_few(state))
    return state, ()


def _answer(state: RoundState, upload: Received | Withheld | Persisted) -> SendReceipt:
    """The receipt for an upload that does not count: refused, duplicate or late."""
    if upload.place > state.place:
        return SendReceipt(upload.device, upload.place, "refused", NOT_BEGUN)
    if buffered.applies(state) and buffered.counted(state, upload.device, upload.place):
        return SendReceipt(upload.device, upload.place, "duplicate", "")
    if upload.place == state.place and upload.device in state.folded:
        return SendReceipt(upload.device, upload.place, "duplicate", "")
    return SendReceipt(upload.device, upload.place, "late", CLOSED)


def _too_few(state: RoundState) -> str:
    return (
        f"the quorum of {state.policy.quorum} cannot be reached: of {state.policy.expected} devices "
        f"{len(state.gone)} were refused or left ({', '.join(sorted(state.gone)) or 'none'})"
    )


def _too_withheld(state: RoundState, last: Withheld) -> str:
    return (
        f"round {state.place.round}, exchange {state.place.exchange}: the quorum of {state.policy.quorum} cannot be "
        f"reached: {', '.join(sorted(state.withheld))} withheld what they learned (W17 says why), "
        f"{last.device} the last: {last.reason}; or lower the quorum"
    )


def _too_silent(state: RoundState) -> str:
    policy, place = state.policy, state.place
    came, waited = _counted(len(state.folded), "upload"), _counted(policy.patience + 1, "deadline")
    left = f"; refused or left: {', '.join(sorted(state.gone))}" if state.gone else ""
    left += f"; declined: {', '.join(sorted(state.declined))}" if state.declined else ""
    return (
        f"round {place.round}, exchange {place.exchange}: {came} came of the {state.needed} needed, after "
        f"{waited} of {policy.deadline_s:g} s; "
        f"silent: {', '.join(sorted(state.missing)) or 'none'}{left}{_outage(state)}"
    )


def _outage(state: RoundState) -> str:
    if not state.unlinked_s:
        return ""
    return f"; before that the coordinator had no link to its broker for {state.unlinked_s:.0f} s: are they back?"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _fail(state: RoundState, reason: str) -> RoundTransition:
    return replace(state, phase=RoundPhase.FAILED, reason=reason), (EndRun(reason),)


def _fail_or_skip(state: RoundState, reason: str) -> RoundTransition:
    """Fail, or if the rounds have no end, try the round again later; the closing exchange is not tried again."""
    if not state.policy.forever:
        return _fail(state, reason)
    if state.closing:
        return replace(state, phase=RoundPhase.DONE), (EndRun(""),)
    return _skip(state, _unfilled(state))


def _unfilled(state: RoundState) -> str:
    who = {"silent": state.missing, "declined": state.declined & state.members, "withheld": state.withheld}
    found = "".join(f"; {word}: {', '.join(sorted(devices))}" for word, devices in who.items() if devices)
    return f"{_counted(len(state.folded), 'upload')} came of the {state.needed} needed{found}"


def _skip(state: RoundState, reason: str, *, opened: bool = True) -> RoundTransition:
    """Rest until the pace lets the same exchange be tried again; uploads that are durable stay, and late ones count."""
    if state.stopping:
        return replace(state, phase=RoundPhase.DRAINED), (Skip(state.place, reason, opened),)
    state, dismissed = _dismiss(state)
    state = replace(state, phase=RoundPhase.RESTING, rest_until_s=math.inf, sitting_out=frozenset(), resting=reason)
    return state, (Skip(state.place, reason, opened), *dismissed, Rest(state.place, skipped=True))


def _rest(state: RoundState) -> RoundTransition:
    """Ask the pace; until it answers there is nothing to wait for."""
    return replace(state, phase=RoundPhase.RESTING, rest_until_s=math.inf), (Rest(state.place),)


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
            _gather,
            "counted; the first exchange opens when all devices are here",
        ),
        Rule(
            (_G,),
            RoundTick,
            (_G, _C, _F, _R, _D, _S),
            _gather_tick,
            "the first exchange opens with a quorum once the join grace is over",
        ),
        Rule((_G,), DeviceRefused, (_G, _X), _gather_gone, "fails at once when the quorum is out of reach"),
        Rule((_G,), Left, (_G, _X), _gather_gone, "fails at once when the quorum is out of reach"),
        Rule(
            (_G,),
            Drain,
            (_G, _X, _S),
            _drain_gathering,
            "of a device: it is notified, and not waited for; of the run: it stops, and a restart resumes it",
        ),
        Rule((_G, _C, _F, _R), CancelDrain, (SAME,), _cancel_drain, "no longer draining"),
        Rule(
            (_G,),
            Received,
            (_G,),
            _receive_gathering,
            "answered late or duplicate; otherwise ignored, and the device sends it again",
        ),
        Rule(
            (_C, _F),
            Joined,
            (SAME,),
            _join_running,
            "new devices wait for the next exchange, or with buffers get the newest version; invited ones get their "
            "Assign again",
        ),
        Rule(
            (_C,),
            Drain,
            (_C, _S),
            _drain,
            "of a device: notified at the end of the round, and not invited to the next; of the run: stops there, or "
            "at once if the round waits for devices that decline",
        ),
        Rule(
            (_F,),
            Drain,
            (_F,),
            _drain,
            "of a device: notified at the end of the round, and not invited to the next; of the run: it stops there",
        ),
        Rule((_C, _F, _R), Lost, (SAME,), _lose, "not invited to the next exchange unless it sends something"),
        Rule((_C,), Left, (_C, _F, _D, _X), _leave, "no longer waited for"),
        Rule((_C,), DeviceRefused, (_C, _F, _D, _X), _leave, "no longer waited for"),
        Rule((_F, _R), Left, (SAME,), _leave_finishing, "not waited for in the next exchange"),
        Rule((_F, _R), DeviceRefused, (SAME,), _leave_finishing, "not waited for in the next exchange"),
        Rule((_R,), Joined, (_R,), _join_resting, "counted; once a quorum is here, the pace is asked again"),
        Rule(
            (_R,),
            Drain,
            (_R, _S),
            _drain_resting,
            "of a device: it is notified, and not waited for; of the run: it stops, and a restart resumes it",
        ),
        Rule((_R,), RoundTick, (_R,), _rest_tick, "the pace is asked again when its time has come"),
        Rule(
            (_R,),
            Rested,
            (_R, _C, _F, _D, _X, _S),
            _rested,
            "the round opens if the pace allows it and a quorum is here; if too few are here it is skipped, and tried "
            "again later",
        ),
        Rule(
            (_R,),
            Received,
            (_R,),
            _receive_resting,
            "persisted if a skipped exchange had invited the device; otherwise answered late or duplicate",
        ),
        Rule((_R,), Withheld, (_R,), _receive_closed, "answered late or duplicate"),
        Rule((_R,), Persisted, (_R,), _fold_resting, "counted once; the exchange closes when it is tried again"),
        Rule((_R,), Declined, (_R,), _note_decline, "not invited until it is Willing, or for this round"),
        Rule((_R,), Willing, (_R,), _consent_resting, "invited again; once a quorum is here, the pace is asked again"),
        Rule(
            (_C,),
            Received,
            (_C, _F),
            _receive,
            "persisted if invited and new; otherwise answered late, duplicate or refused; with buffers, a late device "
            "gets the newest version",
        ),
        Rule((_F, _D, _X), Received, (SAME,), _receive_closed, "answered late or duplicate"),
        Rule(
            (_C,),
            Withheld,
            (_C, _F, _R, _D, _X, _S),
            _withhold,
            "no longer waited for in this exchange; if the quorum is all devices, it becomes one smaller",
        ),
        Rule((_F, _D, _X), Withheld, (SAME,), _receive_closed, "answered late or duplicate"),
        Rule(
            (_C,),
            Declined,
            (_C, _F, _D),
            _decline,
            "no longer waited for, nor invited until it is Willing, or for this round; where the round asks a fixed "
            "number of devices, another one is invited; if the quorum is all devices, it becomes one smaller",
        ),
        Rule((_G, _F), Declined, (SAME,), _note_decline, "not invited until it is Willing, or for this round"),
        Rule((_G, _C, _F), Willing, (SAME,), _consent, "waited for again if the exchange is open"),
        Rule((_C,), Persisted, (_C, _F, _D), _fold, "counted once; the last upload closes the exchange"),
        Rule((_F, _D, _X), Persisted, (SAME,), _receive_closed, "too late to count; answered late or duplicate"),
        Rule(
            (_C,),
            RoundTick,
            (_C, _F, _R, _D, _X, _S),
            _tick,
            "silent devices are invited again; at the deadline the exchange closes if there is a quorum; a deadline "
            "without one counts unless a device has come that was not asked yet; rounds without an end skip the "
            "exchange where others fail",
        ),
        Rule(
            (_F,),
            Finished,
            (_C, _R, _X, _S),
            _next,
            "the next exchange, the next round or the closing exchange opens, or the run stops",
        ),
        Rule((_G, _C, _F, _R), Broken, (_X,), _break, "the method, the broker or the ledger has failed"),
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
    stopping: bool = False,
    enough: bool = False,
    counted_to: Mapping[str, int] | None = None,
    ahead: tuple[Persisted, ...] = (),
) -> RoundState:
    """The state after a restart: gathering again, at an exchange that has durable uploads of the devices in `folded`.

    asked, answered: the counts of RoundState when the last round ended.  gone: devices that an operator took out.
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
    return replace(state, folded=folded)


def postponed(state: RoundState, by_s: float, not_before_s: float = 0.0) -> RoundState:
    """The state with all its times moved back by `by_s` seconds, during which the rounds stood still.

    not_before_s: the earliest time of the next deadline, in seconds.
    """
    opens_at_s = None if state.opens_at_s is None else max(state.opens_at_s + by_s, not_before_s)
    due_s = max(state.due_s + by_s, not_before_s)
    return replace(
        state,
        due_s=due_s,
        rest_until_s=max(state.rest_until_s, not_before_s),
        retry_at_s=state.retry_at_s + by_s,
        times=state.times.without_all(),
        opens_at_s=opens_at_s,
    )


def rounds_due_s(state: RoundState) -> float | None:
    """The time in s at which the next RoundTick can change something, or None if only another event can."""
    if state.phase is RoundPhase.COLLECTING:
        return min(state.due_s, state.retry_at_s) if state.waited_for else state.due_s
    if state.phase is RoundPhase.GATHERING and state.quorum_here:
        return state.opens_at_s if state.opens_at_s is not None and not state.all_here else 0.0
    if state.phase is RoundPhase.RESTING and state.rest_until_s < math.inf:
        return state.rest_until_s
    return None
