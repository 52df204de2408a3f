"""The exchange that a device is working on: begun by an Assign, computed in slices, stored, or abandoned."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_sdk.device import recovery
from edge_sdk.device.context import DISK_AGAIN_S, DeviceContext
from edge_sdk.device.exchange import OngoingExchange, begin_exchange, training_failed
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.refused_assigns import RefusedAssigns
from edge_sdk.device.session import SessionPhase
from edge_sdk.device.training.learner import Learner
from edge_sdk.device.training.public_supply import PublicSupply
from edge_sdk.errors import LearningLost, Refused, RefusedKnowledge, RemoteProtocolError, StoreError, TrainingFailed
from edge_sdk.policy.energy import TrainingCost
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Assign

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""The pause after the second failure in a row, and the maximum.  The first failure causes no pause."""


@dataclass
class Backoff:
    """Counts the failures in a row."""

    failures: int = 0
    until_s: float = -math.inf
    """When the pause ends, in seconds of the driver's clock, which may be negative."""

    def failed(self, now_s: float) -> None:
        """Note a failure; from the second on, begin a pause."""
        self.failures += 1
        if self.failures > 1:
            self.until_s = now_s + self.pause_s

    @property
    def pause_s(self) -> float:
        """The length of the pause after the current number of failures, in seconds."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self.failures - 2, 16), LONGEST_PAUSE_S) if self.failures > 1 else 0.0

    def succeeded(self) -> None:
        """Note a success: the next failure counts as the first."""
        self.failures, self.until_s = 0, -math.inf

    def left_s(self, now_s: float) -> float:
        """Return the rest of the pause in seconds."""
        return max(0.0, self.until_s - now_s)


log = logging.getLogger(__name__)

CONTROL_GROUP = (
    "this device is in the control group for some rounds: it trains alone, so that the others can be compared with it; "
    "predict() keeps the best model"
)
"""A line that the owner reads once."""


class Work:
    """At most one exchange at a time; its changes of the model count once they are stored."""

    def __init__(self, context: DeviceContext, incoming: IncomingFrames, uplink: Uplink, supply: PublicSupply) -> None:
        self._context, self._incoming, self._uplink, self._supply = context, incoming, uplink, supply
        self._stamp = Stamp()
        """The stamp of the current Assign."""
        self._backoff = Backoff()
        self.current: OngoingExchange | None = None
        self.begun = 0
        """The number of exchanges that this device has begun since it was made."""
        self.refused = RefusedAssigns()
        self.save_again_s: float | None = None
        """When to retry saving the exchange after a disk fault."""
        self.pending_request: Any = None
        """What `serve` yielded at the last pause; in a simulator, the request that it still has to carry out."""

    @property
    def busy(self) -> bool:
        """Whether an exchange is being computed or stored."""
        return self.current is not None

    @property
    def troubled(self) -> bool:
        """Whether a failure is remembered: of training, of the disk, or of an Assign that could not be used."""
        return bool(self._backoff.failures) or self.save_again_s is not None or self.refused.some

    @property
    def begun_one(self) -> bool:
        """Whether an exchange has changed the model, and is not stored yet."""
        return self.current is not None and self.current.begun

    @property
    def computing(self) -> bool:
        """Whether there is an exchange that is not computed yet."""
        return self.current is not None and self.current.result is None

    @property
    def unsaved_bytes(self) -> int:
        """Bytes that the current exchange will store besides its upload: the Assign, and the start of a round."""
        return self.current.unsaved_bytes if self.current is not None else 0

    def begin(self, learner: Learner, assign: Assign, frame: Frame, stamp: Stamp) -> None:
        """Begin the exchange of an Assign.  Raises StoreError if the disk fails; the repeated Assign then begins it."""
        context = self._context
        try:
            if self.current is not None and self.current.begun:
                self.abandon()  # it has already changed the model
            if self._backoff.left_s(context.now_s) and not assign.closing:
                failed = f"training failed {self._backoff.failures} times in a row"
                # constant until the next try, so that repeated uploads have the same bytes
                reason = f"{failed}, next try {self._backoff.pause_s:.0f} s after the last"
                learner.skip_round(assign.round, TrainingFailed(reason))
            work = begin_exchange(learner, context.store, assign, frame, context.serve)
            if context.examiner is not None:
                work.slices = context.examiner.examined(work, work.slices)
            self.current, self._stamp = work, stamp
            if assign.alone:
                self._incoming.tell_once("alone", CONTROL_GROUP)
        except StoreError:
            context.session = dataclasses.replace(context.session, phase=SessionPhase.IDLE)
            raise
        self.begun += 1

    def skip_refused(self, reason: RefusedKnowledge) -> None:
        """Skip the round of an Assign that was refused again; the owner reads the reason once per start."""
        if self.current is not None:
            round_ = self.current.assign.round
            line = f"round {round_}: {reason}; withheld and undone: {reason.remedy}"
            self._incoming.tell_once(reason.code, line)
            self.current.learner.skip_round(round_, reason)

    def slice(self, reply: Any) -> bool:
        """Compute until the next pause between batches; returns whether the exchange is computed."""
        work = self.current
        if work is None or work.result is not None:
            return False
        work.begun = True
        try:
            with np.errstate(all="ignore"):  # a step that diverges is withheld, and reported in one line
                self.pending_request = work.slices.send(reply)
        except StopIteration as stop:
            work.result = stop.value
            return True
        except LearningLost as reason:
            work.withhold(reason, self._context.owner.news)
            return True
        except RemoteProtocolError as error:  # the Assign's knowledge does not fit
            self._incoming.count_refused(error.kind, f"refused an Assign: {error}")
            unfit = self.refused.reason(work.assign, self._stamp, error)
            if unfit is not None:
                self.skip_refused(unfit)
                work.withhold(unfit, self._context.owner.news)
                return True
            self.abandon()  # treat the frame as never received
            self._context.session = recovery.restored_session(
                self._context.session, SessionPhase.IDLE, work.learner.membership, self._context.store
            )
        return False

    def fail(self, error: Exception, now_s: float) -> None:
        """Withhold the round whose computation raised an error.  Raises the error if no exchange is being computed."""
        work = self.current
        if work is None or work.done is not None:
            raise error
        log.error("%s: round %d: training failed", self._context.device, work.assign.round, exc_info=error)
        self._backoff.failed(now_s)
        work.withhold(training_failed(error), self._context.owner.news)

    def finish(self, now_s: float) -> OngoingExchange | None:
        """Store the computed exchange; returns it, or None without one, or if the disk fails.

        Raises Refused if the method's knowledge does not fit the federation.
        """
        work, self.save_again_s = self.current, None
        if work is None or work.result is None:
            return None
        if work.done is None:
            self._pack(work)
        try:
            self._context.check_store()
            work.save()
        except StoreError as error:
            self.save_again_s = now_s + DISK_AGAIN_S
            self._context.note_disk_fault(error, f"round {work.assign.round} is kept, next try in {DISK_AGAIN_S:g} s")
            return None
        self.current = None
        if work.withheld is None and work.learner.membership.is_last(work.assign.exchange):
            self._backoff.succeeded()
        return work

    def _pack(self, work: OngoingExchange) -> None:
        context = self._context
        cost = TrainingCost() if context.gate is None else context.gate.take_cost()
        try:
            alter = None if context.outgoing is None else context.outgoing.knowledge
            work.pack(alter, self._uplink, context.owner.news, cost, self._incoming.refused_since())
        except RemoteProtocolError as error:
            remedy = "check what this device's model returns; if it is right, upgrade this device's SDK"
            raise Refused("method", f"round {work.assign.round}: {error}", remedy) from error

    def abandon(self) -> None:
        """Abandon the current exchange, and restore the state after the last stored one."""
        self.current = None
        if self._context.learner is not None:
            lacks = self._supply.missing is not None
            recovery.recompute_round(self._context.learner, self._context.store, lacks_public_set=lacks)
