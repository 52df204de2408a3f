"""The round machine's rules for versions that are aggregated from buffers (buffered.py)."""

from __future__ import annotations

from dataclasses import replace

from coordinator.rounds import buffered
from coordinator.rounds.exchanges import (
    close_if_complete,
    fail_or_skip,
    give_work,
    go_on,
    invitation,
    receipt_of_uncounted,
    too_withheld,
)
from coordinator.rounds.state import (
    Fold,
    Joined,
    Persisted,
    Received,
    RoundPhase,
    RoundState,
    RoundTransition,
    SendReceipt,
    Withheld,
)
from edge_sdk.reductions.append_only import AppendOnlySet


def rejoin_buffer(state: RoundState, event: Joined) -> RoundTransition:
    """Send the newest version to a device that may have lost its work, or to another one if there is room.

    While the rounds rest it gets that version once they open (`ask_again`).
    """
    if event.device not in state.work:
        return give_work(state, event.now_s)
    state = buffered.given_newest(state, frozenset({event.device}), event.now_s)
    rests = state.phase is RoundPhase.RESTING
    return state, () if rests else (invitation(state, {event.device}, event.now_s),)


def receive_too_old(state: RoundState, event: Received) -> RoundTransition:
    """Give work to a device whose upload came too late to count."""
    late = receipt_of_uncounted(state, event)
    state = replace(state, invited=state.invited - ({event.device} - state.folded))
    state, commands = go_on(buffered.released(state, event.device), event.now_s)
    return state, (late, *commands)


def withhold_version(state: RoundState, event: Withheld) -> RoundTransition:
    """Ask the device again with the next version."""
    one = event.device
    state = replace(
        buffered.released(state, one), withheld=state.withheld | {one}, invited=state.invited - ({one} - state.folded)
    )
    noted = SendReceipt(one, event.place, "withheld", event.reason)
    if state.phase is RoundPhase.RESTING:
        return state, (noted,)
    possible = state.yield_possible
    state, commands = close_if_complete(state) if possible else fail_or_skip(state, too_withheld(state, event))
    return state, (noted, *commands)


def count_in_buffer(state: RoundState, event: Persisted) -> RoundTransition:
    """Count a durable upload in this buffer or the next one, and give its device work again."""
    if buffered.counted(state, event.device, event.place):
        return state, (receipt_of_uncounted(state, event),)
    state, now = buffered.answered(state, event)
    first: Fold | SendReceipt = SendReceipt(event.device, event.place, "accepted", "")
    if now:
        one, folded = event.device, state.folded
        grown = folded if isinstance(folded, AppendOnlySet) else AppendOnlySet(folded)
        state = replace(state, folded=grown.added(one), invited=state.invited | {one}, withheld=state.withheld - {one})
        first = Fold(one, event.place, event.upload)
    state, commands = go_on(state, event.now_s)
    return state, (first, *commands)


def ask_again(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version again to silent devices that have it, and to idle ones."""
    wait_s = min(max(state.retry_wait_s, state.policy.retry_s) * 2, state.policy.deadline_s)
    state = replace(state, retry_at_s=now_s + wait_s, retry_wait_s=wait_s)
    silent = buffered.silent(state, now_s)
    state, idle = buffered.idle(buffered.given_newest(state, silent, now_s), now_s)
    return state, (invitation(state, silent | idle, now_s),) if silent | idle else ()
