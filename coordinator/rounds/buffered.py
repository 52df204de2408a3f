"""Rounds without rounds: the coordinator aggregates as soon as some of the busy devices have answered.

Buffered asynchrony: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022
(arXiv:2106.06639).  A *version* is the state that devices learn from; it has the number of a round.  `busy` devices
compute at any time, each from the version that was the newest when it got its work.  The *buffer* of a version takes
`buffer` uploads, made from any version, and is then aggregated into the next version.  The staleness of an upload is
the number of versions made since its device began.

A device that answers gets the newest version at once, or waits for the next one if it has computed that.  So it answers
each version at most once, and the version shows whether an upload is a repeated one.  A device whose upload is in the
open buffer may answer a second time: that upload waits for the next buffer.

If versions have a pace, it decides when devices get work.  Their uploads count at any time, also while the rounds rest,
and may fill and close a buffer then.

The functions are pure, and used by machine.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coordinator.rounds import selection
from coordinator.rounds.state import Fold, GivenWork, Persisted, RoundState
from edge_sdk.protocol.exchange_id import ExchangeId

_SLACK = 1.5
"""A device counts as silent once it takes this many times longer than for its last answer."""


def applies(state: RoundState) -> bool:
    """Whether a buffer is open, or is the next to open."""
    return bool(state.policy.buffer) and not state.closing


def counted(state: RoundState, device: str, place: ExchangeId) -> bool:
    """Whether an upload of this version, or of a later one, of this device counts already."""
    return place.round <= state.counted_to.get(device, -1)


def takes(state: RoundState, device: str, place: ExchangeId) -> bool:
    """Whether an upload counts if it arrives now: the device was asked for it, and it is new and not too old."""
    policy, now = state.policy, state.place.round
    if place.exchange or place.round > now or counted(state, device, place):
        return False
    if place.round < now and (place.round < policy.first_ageing or now - place.round > policy.max_staleness):
        return False
    if device in state.folded and now + 1 == policy.rounds:
        return False  # there is no next buffer
    work = state.work.get(device)
    return place.round <= (state.asked_to if work is None else max(work.version, state.asked_to))


def works_on(state: RoundState, device: str, place: ExchangeId) -> bool:
    """Whether the device was last asked for this version."""
    work = state.work.get(device)
    return work is not None and work.version == place.round


def slot_of(state: RoundState, device: str) -> ExchangeId:
    """Return the buffer that takes the next upload of a device: the open one, or the next one."""
    return ExchangeId(state.place.round + (device in state.folded), 0)


def fitting(state: RoundState, devices: Sequence[str]) -> int:
    """Return how many uploads of these devices, in their order, may be written before the buffer is aggregated.

    Return 0 while it is being aggregated, which the disk can delay: the next buffer is not open yet.
    """
    if not applies(state):
        return len(devices)
    room, count = state.policy.buffer - len(state.folded), 0
    there = set(state.folded)
    for device in devices:
        if room <= 0:
            break
        room -= device not in there
        there.add(device)
        count += 1
    return count


def opened_buffer(state: RoundState) -> tuple[RoundState, tuple[Fold, ...]]:
    """Open a buffer: uploads that waited for it count in it, and devices at work continue with their earlier versions.

    After a restart, or a rest, the buffer may already hold uploads.  Then those that wait belong to the next one.
    """
    ahead = () if state.folded else state.ahead
    folded = frozenset(state.folded) | {each.device for each in ahead}
    at_work = frozenset(state.work) & (state.members - state.away)
    waiting = () if ahead else state.ahead
    state = replace(state, ahead=waiting, folded=folded, invited=folded | at_work, withheld=frozenset())
    return state, tuple(Fold(each.device, each.place, each.upload, answered=True) for each in ahead)


def answered(state: RoundState, event: Persisted) -> tuple[RoundState, bool]:
    """Take a durable upload; returns whether it counts in the open buffer (otherwise it waits for the next one)."""
    device, version = event.device, event.place.round
    work = state.work.get(device)
    took_s = dict(state.took_s)
    if work is not None and work.version == version:
        took_s[device] = event.now_s - work.at_s
        state = replace(state, work=_without(state.work, device), took_s=took_s)
    state = replace(state, counted_to={**state.counted_to, device: version})
    if device in state.folded:
        return replace(state, ahead=(*state.ahead, event)), False
    return state, True


def released(state: RoundState, device: str) -> RoundState:
    """The device no longer computes."""
    return replace(state, work=_without(state.work, device)) if device in state.work else state


def idle(state: RoundState, now_s: float) -> tuple[RoundState, frozenset[str]]:
    """Give the newest version to idle devices while fewer than `busy` compute; returns these devices."""
    here = state.members - state.away - state.declined
    free = (state.policy.busy or len(state.members)) - len(here & state.work.keys())
    able = frozenset(here) - state.work.keys() - state.withheld
    if state.place.round + 1 == state.policy.rounds:
        able -= state.folded  # a second answer would count in the next buffer, but this is the last one
    able = frozenset(each for each in able if state.counted_to.get(each, -1) < state.place.round)
    chosen = selection.select(able, max(0, free), state.policy.seed, state.place.round)
    return given_newest(state, chosen, now_s), chosen


def given_newest(state: RoundState, devices: frozenset[str], now_s: float) -> RoundState:
    """These devices get the newest version."""
    if not devices:
        return state
    work = {**state.work, **{each: GivenWork(state.place.round, now_s) for each in sorted(devices)}}
    return replace(state, work=work, invited=state.invited | devices)


def silent(state: RoundState, now_s: float) -> frozenset[str]:
    """Devices whose work on the newest version may be lost.  Devices with an earlier version still compute."""
    wait_s = state.policy.retry_s
    due_s = {
        device: work.at_s + max(wait_s, _SLACK * state.took_s.get(device, 0.0))
        for device in state.missing
        if (work := state.work.get(device)) is not None and work.version == state.place.round
    }
    return frozenset(device for device, each_s in due_s.items() if each_s <= now_s)


def _without(work: Mapping[str, GivenWork], device: str) -> dict[str, GivenWork]:
    return {each: known for each, known in work.items() if each != device}
