"""The steps that the rules of rounds share: who is here, and how an exchange opens, invites, closes or fails."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import replace

from coordinator.rounds import buffered, selection
from coordinator.rounds.state import (
    DeviceRefused,
    Dismiss,
    EndRun,
    Invite,
    Joined,
    Left,
    Persisted,
    Received,
    Reduce,
    Rest,
    RoundCommand,
    RoundDone,
    RoundPhase,
    RoundState,
    RoundTransition,
    SendReceipt,
    Skip,
    Withheld,
)
from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.reductions.append_only import AppendOnlySet

NOT_INVITED, NOT_BEGUN, CLOSED = (
    "not invited to this exchange",
    "this exchange has not begun",
    "this exchange is closed",
)
"""The reasons in receipts of uploads that do not count."""


def _present(state: RoundState, device: str) -> RoundState:
    if device in state.members and device not in state.away and device not in state.gone:
        return state
    members = state.members if isinstance(state.members, AppendOnlySet) else AppendOnlySet(state.members)
    return replace(
        state,
        members=members.added(device),
        away=state.away - {device},
        gone=state.gone - {device},
    )


def with_device(state: RoundState, event: Joined) -> RoundState:
    """Add a device that has joined; it may come in place of another one."""
    if event.instead_of:
        state = _replaceable(absent(state, event.instead_of), event.instead_of)
    return _present(state, event.device)


def parted(state: RoundState, event: DeviceRefused | Left) -> RoundState:
    """Take out a device that was refused or has left."""
    state = absent(state, event.device)
    return _replaceable(state, event.device) if isinstance(event, Left) and event.replaceable else state


def _replaceable(state: RoundState, device: str) -> RoundState:
    """Another device may join in place of this one."""
    return replace(state, gone=state.gone - {device})


def seen(state: RoundState, device: str) -> RoundState:
    """A device that sends anything is no longer away."""
    return replace(state, away=state.away - {device}) if device in state.away else state


def absent(state: RoundState, device: str) -> RoundState:
    """Take out a device; its upload counts if it is durable."""
    return replace(
        state,
        members=state.members - {device},
        away=state.away - {device},
        gone=state.gone | {device},
        draining=state.draining - {device},
        invited=state.invited - ({device} - state.folded),
        earlier=state.earlier | ({device} & state.invited),
        declining=state.declining - {device},
        sitting_out=state.sitting_out - {device},
        times=state.times.without(device),
        work=buffered.released(state, device).work,
    )


def await_rest(state: RoundState, now_s: float) -> RoundState:
    """Start the join grace for the remaining devices as soon as a quorum is here."""
    if state.quorum_here and state.opens_at_s is None:
        return replace(state, opens_at_s=now_s + state.policy.join_grace_s)
    return state


def at(state: RoundState, place: ExchangeId) -> RoundState:
    """Go to a new exchange, without invited devices."""
    nobody: frozenset[str] = frozenset()
    return replace(state, place=place, folded=nobody, invited=nobody, earlier=nobody)


def begin(state: RoundState, now_s: float) -> RoundTransition:
    """Open the first exchange after gathering."""
    if state.unrecorded is None:
        new = not state.place.exchange and (not state.folded or buffered.applies(state))
        return open_or_stop(state, now_s) if new and state.policy.paced else open_exchange(state, now_s)
    ended = RoundDone(state.unrecorded)
    state, commands = open_or_stop(replace(state, unrecorded=None), now_s)
    return state, (ended, *commands)


def open_or_stop(state: RoundState, now_s: float) -> RoundTransition:
    """Open the first exchange of a round, unless the run stops before it; the closing exchange still takes place."""
    if state.stopping and not state.closing:
        return replace(state, phase=RoundPhase.DRAINED), ()
    if state.policy.paced and not state.closing:
        return rest(replace(state, invited=frozenset(), withheld=frozenset()))
    return open_exchange(state, now_s)


def dismiss(state: RoundState) -> RoundTransition:
    """Take the draining devices out at the end of a round; the closing exchange still brings them the result."""
    if not state.draining or state.closing:
        return state, ()
    devices = tuple(sorted(state.draining))
    for device in devices:
        state = absent(state, device)
    return state, (Dismiss(devices),)


def open_exchange(state: RoundState, now_s: float) -> RoundTransition:
    """Open an exchange; invite the present members, or all members if fewer than a quorum are present.

    Declining members are left out: their link may be metered.
    """
    if not state.quorum_possible:
        return fail_run(state, _too_few(state))
    if buffered.applies(state):
        return open_buffer(state, now_s)
    restarted = state.phase is RoundPhase.GATHERING and (state.place > FIRST or bool(state.folded))
    state = replace(state, members=frozenset(state.members))  # much faster to subtract from; new devices are rare now
    here = _less(state.members, state.away)
    pool = here if len(here) + len(state.folded - here) >= state.policy.quorum else state.members
    pool = _less(pool, state.declined)
    invited = choose_devices(state, pool) | state.folded
    if len(state.folded) >= state.policy.expected:  # already closed before a restart: no further upload may count
        invited = frozenset(state.folded)
    state = replace(
        state,
        phase=RoundPhase.COLLECTING,
        invited=invited,
        earlier=(state.earlier | state.invited) - invited,
        due_s=now_s + state.policy.deadline_s,
        retry_at_s=now_s + state.policy.retry_s,
        retry_wait_s=state.policy.retry_s,
        times=state.times.opened(state.place, frozenset() if restarted else invited, now_s, state.policy.deadline_s),
        misses=0,
        unlinked_s=0.0,
        withheld=frozenset(),
    )
    state, closing = close_if_complete(state)
    if closing or not state.missing:
        return state, closing
    return state, (invitation(state, state.missing, now_s),)


def _less(devices: AbstractSet[str], without: Collection[str]) -> AbstractSet[str]:
    """Return devices less some; subtracting an empty set would copy all members of a large fleet."""
    return devices - frozenset(without) if without else devices


def open_buffer(state: RoundState, now_s: float) -> RoundTransition:
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
    state, commands = go_on(state, now_s)
    return state, (*waited, *commands)


def go_on(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version to idle devices; close a buffer that is full, or for which no other device computes.

    While the rounds rest, devices get no work, and only a full buffer closes.
    """
    full = len(state.folded) >= state.policy.buffer
    if state.phase is RoundPhase.RESTING:
        return close_exchange(state) if full else (state, ())
    invites: tuple[RoundCommand, ...] = ()
    if not full:
        state, invites = give_work(state, now_s)
    state, closing = close_if_complete(state)
    return state, closing or invites


def give_work(state: RoundState, now_s: float) -> RoundTransition:
    """Send the newest version to idle devices, unless the rounds rest."""
    if state.phase is RoundPhase.RESTING:
        return state, ()
    state, devices = buffered.idle(state, now_s)
    return state, (invitation(state, devices, now_s),) if devices else ()


def choose_devices(state: RoundState, pool: AbstractSet[str], more: int = 0) -> frozenset[str]:
    """Choose the devices of the pool that this exchange invites; `more` is added to the number to choose."""
    policy = state.policy
    if state.wanted is None:
        return frozenset(policy.closed_with) & pool if state.closing and policy.closed_with else frozenset(pool)
    count = selection.invitations(state.wanted, state.asked, state.answered) if policy.over_select else state.wanted
    return selection.select(pool, count + more, policy.seed, state.place.round)


def heard_late(state: RoundState, event: Received | Withheld | Persisted) -> RoundState:
    """Count an answer to a round's first exchange that came after enough others had closed it."""
    if event.device not in state.unheard or event.place.exchange or event.place >= state.place:
        return state
    return replace(state, asked=state.asked + 1, answered=state.answered + 1, unheard=state.unheard - {event.device})


def _measured(state: RoundState) -> RoundState:
    """Count the devices asked and the answers to a round's first exchange.

    If enough answers came before the deadline, the outcome of the other devices is unknown: they are put in `unheard`.
    Devices that were put there in the previous round and are away by now count as asked without an answer.
    """
    if state.place.exchange or state.closing or state.policy.buffer:
        return state
    unheard = state.missing if state.wanted is not None and len(state.folded) >= state.wanted else frozenset()
    silent_or_here = state.invited - (state.declined - state.folded)
    asked = state.asked + len(silent_or_here - unheard) + len(state.unheard & state.away)
    return replace(state, asked=asked, answered=state.answered + len(state.folded), unheard=unheard)


def invitation(state: RoundState, devices: frozenset[str] | set[str], now_s: float) -> Invite:
    """The command that sends devices their Assigns for the open exchange."""
    return Invite(tuple(sorted(devices)), state.place, max(0.0, state.due_s - now_s))


def close_if_complete(state: RoundState) -> RoundTransition:
    """Close the exchange if it has enough uploads and waits for no other device."""
    if len(state.folded) < state.needed:
        return state, ()
    enough = state.wanted is not None and len(state.folded) >= state.wanted
    return close_exchange(state) if enough or not state.waited_for else (state, ())


def close_exchange(state: RoundState, now_s: float | None = None) -> RoundTransition:
    """Have the method reduce the uploads; the closing exchange ends the run."""
    if state.closing:
        return replace(state, phase=RoundPhase.DONE), (EndRun(""),)
    partial = len(state.folded) < state.policy.expected or not state.members <= state.folded
    reduce = Reduce(state.place, tuple(sorted(state.folded)), partial)
    times = state.times.closed(state.members, now_s)
    return replace(_measured(state), phase=RoundPhase.FINISHING, times=times), (reduce,)


def fail_without_quorum(state: RoundState) -> RoundTransition:
    """Fail if a quorum is no longer possible."""
    if not state.quorum_possible:
        return fail_run(state, _too_few(state))
    return state, ()


def receipt_of_uncounted(state: RoundState, upload: Received | Withheld | Persisted) -> SendReceipt:
    """The receipt for an upload that does not count: refused, duplicate or late."""
    if upload.place > state.place:
        return SendReceipt(upload.device, upload.place, "refused", NOT_BEGUN)
    if buffered.applies(state) and buffered.counted(state, upload.device, upload.place):
        return SendReceipt(upload.device, upload.place, "duplicate", "")
    if upload.place == state.place and upload.device in state.folded:
        return SendReceipt(upload.device, upload.place, "duplicate", "")
    return SendReceipt(upload.device, upload.place, "late", CLOSED)


def _too_few(state: RoundState) -> str:
    gone = len(state.gone)
    return (
        f"the quorum of {state.policy.quorum} cannot be reached: of {state.policy.expected} devices {gone} "
        f"{'was' if gone == 1 else 'were'} refused or left ({', '.join(sorted(state.gone)) or 'none'})"
    )


def too_withheld(state: RoundState, last: Withheld) -> str:
    """Why a run fails if too many devices withheld their upload."""
    return (
        f"round {state.place.round}, exchange {state.place.exchange}: the quorum of {state.policy.quorum} cannot be "
        f"reached: {', '.join(sorted(state.withheld))} withheld what they learned (W17 says why), "
        f"{last.device} the last: {last.reason}; or lower the quorum"
    )


def too_silent(state: RoundState) -> str:
    """Why a run fails if too few devices answered."""
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


def fail_run(state: RoundState, reason: str) -> RoundTransition:
    """End the run with a reason."""
    return replace(state, phase=RoundPhase.FAILED, reason=reason), (EndRun(reason),)


def fail_or_skip(state: RoundState, reason: str) -> RoundTransition:
    """Fail, or if the rounds have no end, try the round again later; the closing exchange is not tried again."""
    if not state.policy.forever:
        return fail_run(state, reason)
    if state.closing:
        return replace(state, phase=RoundPhase.DONE), (EndRun(""),)
    return skip(state, _unfilled(state))


def _unfilled(state: RoundState) -> str:
    who = {"silent": state.missing, "declined": state.declined & state.members, "withheld": state.withheld}
    found = "".join(f"; {word}: {', '.join(sorted(devices))}" for word, devices in who.items() if devices)
    return f"{_counted(len(state.folded), 'upload')} came of the {state.needed} needed{found}"


def skip(state: RoundState, reason: str, *, opened: bool = True) -> RoundTransition:
    """Rest until the pace lets the same exchange be tried again; durable uploads stay, and late ones count."""
    if state.stopping:
        return replace(state, phase=RoundPhase.DRAINED), (Skip(state.place, reason, opened),)
    state, dismissed = dismiss(state)
    state = replace(state, phase=RoundPhase.RESTING, rest_until_s=math.inf, sitting_out=frozenset(), resting=reason)
    return state, (Skip(state.place, reason, opened), *dismissed, Rest(state.place, skipped=True))


def rest(state: RoundState) -> RoundTransition:
    """Ask the pace; until it answers, a buffer takes the uploads that waited for it, and devices at work continue."""
    state, waited = buffered.opened_buffer(state) if buffered.applies(state) else (state, ())
    return replace(state, phase=RoundPhase.RESTING, rest_until_s=math.inf), (*waited, Rest(state.place))
