"""Standing again where the last durable exchange left a device: after a restart, or when work was given up."""

from __future__ import annotations

import dataclasses

from edge_sdk.device.learner import Learner
from edge_sdk.device.membership import Membership
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.device.store import Store
from edge_sdk.protocol import codec
from edge_sdk.protocol.messages import Welcome


def last_welcome(store: Store) -> Welcome | None:
    """Who took this device in, in an earlier life; None: nobody yet."""
    frame = store.welcome()
    message = codec.decode(frame).message if frame is not None else None
    return message if isinstance(message, Welcome) else None


def replay(learner: Learner, store: Store, *, lacking: bool) -> None:
    """Replay the round from its saved start; exact, because nothing in it is random but by seed.

    lacking: the public set is not here, so only the start is loaded, and the rest follows once the set is.
    """
    with learner.lock:
        learner.sits_out = None
        start = store.start()
        if start is None:
            return
        learner.go_back_to(start)
        dones = () if lacking else tuple(done for done in store.done() if done.round >= start.round)
        withheld = learner.membership.withheld_in(dones[-1].upload) if dones else ""
        if withheld:  # and so the whole round was undone
            learner.sits_out = dones[-1].round, withheld
            return
        for done in dones:
            learner.repeat(learner.membership.stored_assign(done.assign))


def stand(state: SessionState, phase: SessionPhase, membership: Membership, store: Store) -> SessionState:
    """The session in this phase, at the place of the last durable exchange."""
    fresh = SessionState()
    place, closing, pending = fresh.place, fresh.closing, fresh.pending
    for last in store.done()[-1:]:
        place, pending = (last.round, last.exchange), not last.receipted
        closing = membership.stored_assign(last.assign).closing
    return dataclasses.replace(state, phase=phase, place=place, closing=closing, pending=pending, unfinished=False)
