"""Restores a device to its state after the last stored exchange, after a restart or an abandoned exchange."""

from __future__ import annotations

import dataclasses
import logging

from edge_sdk.device.exchange import training_failed
from edge_sdk.device.membership import Membership
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.device.store import RoundStart, Store
from edge_sdk.device.training.learner import Learner
from edge_sdk.errors import TrainingFailed, UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Welcome

log = logging.getLogger(__name__)


def last_welcome(store: Store) -> Welcome | None:
    """Return the stored Welcome, or None before a coordinator has accepted this device."""
    frame = store.welcome()
    message = codec.decode(frame).message if frame is not None else None
    return message if isinstance(message, Welcome) else None


def check_owner(store: Store, device: str, place: str) -> None:
    """Raise UsageError if a coordinator has accepted another device with this state.  place: where the state lies.

    The stored uploads belong to that device, and cannot be sent under another id.
    """
    welcome = last_welcome(store)
    if welcome is not None and welcome.device != device:
        raise UsageError(
            f"{place}: holds the state of {welcome.device}, and this device is {device}: SD cards or folders may be "
            "swapped; give this device its own folder (state=, --state), or an empty one to join as a new device"
        )


def recompute_round(learner: Learner, store: Store, *, lacks_public_set: bool) -> None:
    """Restore the saved start of the round, and compute the exchanges since then again.

    This gives the same bits, because all randomness follows from seeds.  lacks_public_set: restores only the start; a
    second call computes the exchanges once the set is complete.  If the model or the samples raise an error, the device
    continues from the round's start without the round.
    """
    learner.skipped_round = None
    start = store.round_start()
    if start is None:
        return
    learner.restore(start)
    stored = store.finished()
    if stored and stored[-1].round < start.round and not learner.membership.is_last(stored[-1].exchange):
        learner.skip_round(stored[-1].round, TrainingFailed("the app brought a new model within the round"))
    if stored and stored[-1].round >= start.round:
        learner.supply.release(start.data)
    finished = () if lacks_public_set else tuple(done for done in stored if done.round >= start.round)
    withheld = learner.membership.withheld_in(finished[-1].upload) if finished else None
    if withheld is not None:  # the whole round was undone
        learner.skipped_round = finished[-1].round, withheld
        return
    for done in finished:
        assign = learner.membership.stored_assign(bytes(done.assign))
        try:
            learner.recompute(assign)
        except Exception as error:
            log.exception("round %d cannot be computed again; it is withheld from here on", assign.round)
            learner.restore(start)
            learner.skip_round(assign.round, training_failed(error))
            return


def start_with_new_model(learner: Learner, store: Store) -> RoundStart:
    """Return the start from which a device continues with a new model: the round after the last stored one.

    The stored exchanges belong to the former model, so they are not recomputed and their uploads are kept.  The
    method's state starts fresh, because it describes the former model's features.
    """
    stored, start = store.finished(), store.round_start()
    if stored:
        return learner.snapshot(stored[-1].round + 1)
    return learner.snapshot(start.round if start is not None else 0)


def restored_session(state: SessionState, phase: SessionPhase, membership: Membership, store: Store) -> SessionState:
    """Return the session in this phase, after the last stored exchange."""
    new = SessionState()
    exchange_id, closing, pending = new.exchange_id, new.closing, new.pending
    for last in store.finished()[-1:]:
        exchange_id, pending = ExchangeId(last.round, last.exchange), not last.receipted
        closing = membership.stored_assign(bytes(last.assign)).closing
    return dataclasses.replace(
        state, phase=phase, exchange_id=exchange_id, closing=closing, pending=pending, unfinished=False
    )
