"""The rules of the round machine: one function for an event in one or several phases.

Each takes the state and the event, and returns the new state and the commands. machine.py has the table of rules.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coordinator.rounds import buffered
from coordinator.rounds.buffer_rules import ask_again, count_in_buffer, receive_too_old, rejoin_buffer, withhold_version
from coordinator.rounds.exchanges import (
    NOT_INVITED,
    absent,
    at,
    await_rest,
    begin,
    choose_devices,
    close_exchange,
    close_if_complete,
    dismiss,
    fail_or_skip,
    fail_run,
    fail_without_quorum,
    give_work,
    go_on,
    heard_late,
    invitation,
    open_exchange,
    open_or_stop,
    parted,
    receipt_of_uncounted,
    rest,
    seen,
    skip,
    too_silent,
    too_withheld,
    with_device,
)
from coordinator.rounds.state import (
    Broken,
    CancelDrain,
    Declined,
    DeviceRefused,
    Dismiss,
    Drain,
    Finished,
    Fold,
    Joined,
    Left,
    Lost,
    Persist,
    Persisted,
    Received,
    Rested,
    RoundDone,
    RoundPhase,
    RoundState,
    RoundTick,
    RoundTransition,
    SendReceipt,
    Willing,
    Withheld,
)
from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.reductions.append_only import AppendOnlySet


def gather(state: RoundState, event: Joined) -> RoundTransition:
    """Open the first exchange when all devices are here."""
    state = await_rest(with_device(state, event), event.now_s)
    return begin(state, event.now_s) if state.all_here else (state, ())


def gather_tick(state: RoundState, event: RoundTick) -> RoundTransition:
    """Open the first exchange with a quorum once the join grace is over."""
    state = await_rest(state, event.now_s)
    waited = state.opens_at_s is not None and event.now_s >= state.opens_at_s
    return begin(state, event.now_s) if waited or state.all_here else (state, ())


def gather_gone(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    """Remove a device before the first exchange.  If too few are left for a quorum, the join grace restarts later."""
    state = parted(state, event)
    return fail_without_quorum(state if state.quorum_here else replace(state, opens_at_s=None))


def join_running(state: RoundState, event: Joined) -> RoundTransition:
    """A new device waits for the next exchange; a device that was invited to this one gets its Assign again."""
    state = with_device(state, event)
    if buffered.applies(state) and state.phase is RoundPhase.COLLECTING:
        return rejoin_buffer(state, event)
    device = event.device  # looked up in each set: the set of all missing devices takes a ms to make of 10,000
    missing = device in state.invited and device not in state.folded and device not in state.declined
    if state.phase is RoundPhase.COLLECTING and missing:
        state = replace(state, times=state.times.without(event.device))
        return state, (invitation(state, {event.device}, event.now_s),)
    return state, ()


def leave(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    """Stop waiting for the device; fail if the quorum is out of reach."""
    failed, commands = fail_without_quorum(parted(state, event))
    return (failed, commands) if commands else close_if_complete(failed)


def leave_finishing(state: RoundState, event: DeviceRefused | Left) -> RoundTransition:
    """Remove a device while the method reduces; whether a quorum is left is checked when the next exchange opens."""
    return parted(state, event), ()


def drain(state: RoundState, event: Drain) -> RoundTransition:
    """Let the device, or the run, finish its round; a device that is not here has nothing to finish.

    A round that waits for declining devices may never end, so the run then stops within it.
    """
    if not event.device:
        stops = state.stalled and not state.closing
        return replace(state, stopping=True, phase=RoundPhase.DRAINED if stops else state.phase), ()
    if event.device in state.members:
        return replace(state, draining=state.draining | {event.device}), ()
    return replace(state, gone=state.gone | {event.device}), ()


def drain_gathering(state: RoundState, event: Drain) -> RoundTransition:
    """Drain at once, because no round is open."""
    if not event.device:
        return replace(state, stopping=True, phase=RoundPhase.DRAINED), ()
    state, commands = gather_gone(state, Left(event.device, event.now_s))
    return state, (Dismiss((event.device,)), *commands)


def cancel_drain(state: RoundState, event: CancelDrain) -> RoundTransition:
    """Keep the device, or the run, after all."""
    if not event.device:
        return replace(state, stopping=False), ()
    return replace(state, draining=state.draining - {event.device}), ()


def lose(state: RoundState, event: Lost) -> RoundTransition:
    """Note that the link of a device is lost."""
    return replace(state, away=state.away | ({event.device} & state.members)), ()


def receive(state: RoundState, event: Received) -> RoundTransition:
    """Store an upload for the open exchange; answer any other."""
    state = heard_late(seen(state, event.device), event)
    if buffered.applies(state) and buffered.takes(state, event.device, event.place):
        return state, (Persist(event.device, event.place, event.upload),)
    if buffered.applies(state) and buffered.works_on(state, event.device, event.place):
        return receive_too_old(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (receipt_of_uncounted(state, event),)
    if not state.may_answer(event.device):
        return state, (SendReceipt(event.device, event.place, "refused", NOT_INVITED),)
    return state, (Persist(event.device, event.place, event.upload),)


def receive_closed(state: RoundState, event: Received | Withheld | Persisted) -> RoundTransition:
    """Answer an upload that comes too late to count."""
    return heard_late(seen(state, event.device), event), (receipt_of_uncounted(state, event),)


def receive_gathering(state: RoundState, event: Received) -> RoundTransition:
    """Ignore an upload for an exchange that a restart has not reopened yet: the device will send it again."""
    if buffered.applies(state) and not buffered.counted(state, event.device, event.place):
        return state, ()
    if event.place < state.place or (event.place == state.place and event.device in state.folded):
        return state, (receipt_of_uncounted(state, event),)
    return state, ()


def withhold(state: RoundState, event: Withheld) -> RoundTransition:
    """Stop waiting for the device in this exchange, and do not invite it again: its answer would be the same."""
    state = seen(state, event.device)
    if event.device in state.withheld and event.place == state.place:
        return state, (SendReceipt(event.device, event.place, "duplicate", ""),)
    if buffered.applies(state) and buffered.takes(state, event.device, event.place):
        return withhold_version(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (receipt_of_uncounted(state, event),)
    if state.closing or not state.may_answer(event.device):
        return state, (
            SendReceipt(
                event.device, event.place, "refused", "this exchange has no upload that this device can withhold"
            ),
        )
    state = replace(
        state,
        invited=state.invited - {event.device},
        withheld=state.withheld | {event.device},
        times=state.times.without(event.device),
    )
    noted = SendReceipt(event.device, event.place, "withheld", event.reason)
    if state.yield_possible:
        state, commands = close_if_complete(state)
    else:
        state, commands = fail_or_skip(state, too_withheld(state, event))
    return state, (noted, *commands)


def note_decline(state: RoundState, event: Declined) -> RoundTransition:
    """Record the device that declines.  A status about another round is late: that round is over."""
    state = replace(buffered.released(state, event.device), times=state.times.without(event.device))
    if event.round is None:
        return replace(state, declining=state.declining | {event.device}), ()
    if event.round == state.place.round:
        return replace(state, sitting_out=state.sitting_out | {event.device}), ()
    return state, ()


def decline(state: RoundState, event: Declined) -> RoundTransition:
    """Continue without the device; a round with a fixed number of participants invites another one in its place."""
    state, _ = note_decline(seen(state, event.device), event)
    if buffered.applies(state):
        return go_on(state, event.now_s)
    state, commands = close_if_complete(state)
    if commands or state.wanted is None or event.device not in state.invited:
        return state, commands
    new = choose_devices(state, state.members - state.away - state.withheld - state.declined) - state.invited
    return (replace(state, invited=state.invited | new), (invitation(state, new, event.now_s),)) if new else (state, ())


def consent(state: RoundState, event: Willing) -> RoundTransition:
    """Invite the device to the open exchange, unless it was invited before or enough others are."""
    one = event.device
    state = replace(seen(state, one), declining=state.declining - {one}, sitting_out=state.sitting_out - {one})
    known = state.invited | state.withheld
    if buffered.applies(state) and state.phase is RoundPhase.COLLECTING:
        return give_work(state, event.now_s)
    if state.phase is not RoundPhase.COLLECTING or one not in state.members or one in known:
        return state, ()
    if state.wanted is not None and len(state.folded) + len(state.missing) >= state.wanted:
        return state, ()
    state = replace(state, invited=state.invited | {one})
    return state, (invitation(state, {one}, event.now_s),)


def count(state: RoundState, event: Persisted) -> RoundTransition:
    """Count a durable upload, even if its device has left meanwhile: a restart would find the upload and count it."""
    if buffered.applies(state):
        return count_in_buffer(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (receipt_of_uncounted(state, event),)
    one = event.device
    invited = state.invited if one in state.invited else state.invited | {one}
    withheld = state.withheld - {one} if one in state.withheld else state.withheld
    folded = state.folded if isinstance(state.folded, AppendOnlySet) else AppendOnlySet(state.folded)
    times = state.times.answered(one, event.now_s)
    state = replace(state, invited=invited, folded=folded.added(one), withheld=withheld, times=times)
    state, closing = close_if_complete(state)
    return state, (Fold(event.device, event.place, event.upload), *closing)


def tick(state: RoundState, event: RoundTick) -> RoundTransition:
    """At the deadline close, wait again or fail; before it, invite silent devices again."""
    policy = state.policy
    if event.now_s >= state.due_s:
        state = replace(state, away=state.away | (state.missing & state.members))
        if len(state.folded) >= state.needed:
            return close_exchange(state, event.now_s)
        by_consent = state.waits_for_consent
        if by_consent and state.stopping and not state.closing:
            return replace(state, phase=RoundPhase.DRAINED), ()
        # too few uploads came from the invited devices: invite new ones, too
        open_to = state.members - state.withheld - state.declined
        asked = frozenset() if buffered.applies(state) else choose_devices(state, open_to, len(state.invited))
        nobody_yet = policy.open and state.place == FIRST and not (state.folded or state.withheld)
        excused = by_consent or nobody_yet or bool(asked - state.invited - state.away)
        if policy.forever and by_consent:
            return fail_or_skip(state, "")
        if state.misses >= policy.patience and not excused:
            return fail_or_skip(state, too_silent(state))
        state = replace(
            state,
            invited=state.invited | asked,
            due_s=event.now_s + policy.deadline_s,
            misses=state.misses if excused else state.misses + 1,
            retry_at_s=event.now_s,
            times=state.times.without_all(),
        )
    if buffered.applies(state) and event.now_s >= state.retry_at_s:
        return ask_again(state, event.now_s)
    if event.now_s >= state.retry_at_s and state.missing:
        return invite_again(state, event.now_s)
    return state, ()


def invite_again(state: RoundState, now_s: float) -> RoundTransition:
    """Invite the silent devices again, except those that probably still compute."""
    at_s = {device: state.times.overdue_at_s(device) for device in state.missing}
    silent = frozenset(device for device, each_s in at_s.items() if each_s <= now_s)
    next_s = min((each_s for each_s in at_s.values() if each_s > now_s), default=math.inf)
    if not silent:
        return replace(state, retry_at_s=next_s), ()
    wait_s = min(max(state.retry_wait_s, state.policy.retry_s) * 2, state.policy.deadline_s)
    times = state.times.invited_again(silent, now_s)
    state = replace(state, retry_at_s=min(now_s + wait_s, next_s), retry_wait_s=wait_s, times=times)
    return state, (invitation(state, silent, now_s),)


def next_exchange(state: RoundState, event: Finished) -> RoundTransition:
    """Open the next exchange, the next round, or the closing exchange."""
    round_, exchange = state.place.round, state.place.exchange + 1
    if exchange < state.policy.exchanges and not event.void:
        return open_exchange(at(state, ExchangeId(round_, exchange)), event.now_s)
    following = state.policy.rounds if event.enough else round_ + 1
    after = replace(at(state, ExchangeId(following, 0)), sitting_out=frozenset())
    after, dismissed = dismiss(after)
    after, commands = open_or_stop(after, event.now_s)
    return after, (RoundDone(round_), *dismissed, *commands)


def rested(state: RoundState, event: Rested) -> RoundTransition:
    """Open the round, wait, or skip it because too few devices are here."""
    if event.enough:
        return open_exchange(at(state, ExchangeId(state.policy.rounds, 0)), event.now_s)
    if event.until_s is not None:
        return replace(state, rest_until_s=event.until_s, resting=event.why), ()
    if state.policy.forever and not state.quorum_here:
        here = f"{len(state.members)} of the {state.policy.quorum} devices needed are here"
        return skip(state, here, opened=False)
    return open_exchange(state, event.now_s)


def rest_tick(state: RoundState, event: RoundTick) -> RoundTransition:
    """Ask the pace again when its time has come."""
    return rest(state) if event.now_s >= state.rest_until_s else (state, ())


def join_resting(state: RoundState, event: Joined) -> RoundTransition:
    """Add the device, and ask the pace again soon."""
    state = with_device(state, event)
    state, _ = rejoin_buffer(state, event) if buffered.applies(state) else (state, ())
    return ask_soon(state, event.now_s, state.policy.join_grace_s), ()


def consent_resting(state: RoundState, event: Willing) -> RoundTransition:
    """Note that the device takes part again, and ask the pace again soon."""
    state, _ = consent(state, event)
    return ask_soon(state, event.now_s), ()


def ask_soon(state: RoundState, now_s: float, in_s: float = 0.0) -> RoundState:
    """Ask the pace again: a device came that the skipped round lacked."""
    return replace(state, rest_until_s=min(state.rest_until_s, now_s + in_s)) if state.quorum_here else state


def drain_resting(state: RoundState, event: Drain) -> RoundTransition:
    """Drain at once, because no exchange is open."""
    if not event.device:
        return replace(state, stopping=True, phase=RoundPhase.DRAINED), ()
    return absent(state, event.device), (Dismiss((event.device,)),)


def receive_resting(state: RoundState, event: Received) -> RoundTransition:
    """Take an upload for a skipped exchange, which is tried again, or for a buffer; others come too late."""
    if buffered.applies(state):
        return receive(state, event)
    if event.place == state.place and state.may_answer(event.device) and event.device not in state.folded:
        return seen(state, event.device), (Persist(event.device, event.place, event.upload),)
    return receive_closed(state, event)


def withhold_resting(state: RoundState, event: Withheld) -> RoundTransition:
    """Release a device that worked for a buffer; a closed exchange does not wait for it."""
    return withhold(state, event) if buffered.applies(state) else receive_closed(state, event)


def fold_resting(state: RoundState, event: Persisted) -> RoundTransition:
    """Count an upload for a skipped exchange, which closes when it is tried again, or for a buffer."""
    if buffered.applies(state):
        return count_in_buffer(state, event)
    if event.place != state.place or event.device in state.folded:
        return state, (receipt_of_uncounted(state, event),)
    state = replace(state, folded=state.folded | {event.device}, invited=state.invited | {event.device})
    return state, (Fold(event.device, event.place, event.upload),)


def break_off(state: RoundState, event: Broken) -> RoundTransition:
    """Fail, because the method, the broker or the ledger has."""
    return fail_run(state, event.reason)
