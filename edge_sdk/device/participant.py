"""A device's part in a federation: connects the session, the method, the model, the transport and the store.

The settings that a Welcome brings are in `membership.py`, model and method in `learner.py`, the exchange that is being
computed in `exchange.py`, the recovery after a restart in `recovery.py`, the public set in `public_supply.py`, and the
frames that come and go in `incoming_frames.py` and `uplink.py`.

Nothing here waits or reads a clock.  The driver calls `handle`, `tick`, `work_slice` and `finish_work` with events and
the time.  The loop in `agent.py` is the driver in an app; a simulator is one in virtual time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

from edge_sdk.class_names import why_not_alike
from edge_sdk.device import membership, recovery, session
from edge_sdk.device.exchange import OngoingExchange, begin_exchange, training_failed
from edge_sdk.device.hooks import ParticipantHooks
from edge_sdk.device.link.backoff import Backoff
from edge_sdk.device.link.doubted_refusal import DoubtedRefusal
from edge_sdk.device.link.hello import HELLOS_BEFORE_NOTICE, hello, no_answer_notice
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.refused_assigns import AssignStamps, RefusedAssigns, is_in_place, without_knowledge
from edge_sdk.device.store import Store
from edge_sdk.device.training.app_model import ModelOrigin, OnNewModel, choose_model, origin_of
from edge_sdk.device.training.data_supply import DataSupply
from edge_sdk.device.training.learner import Learner, ServeRequest
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.public_supply import PublicSupply
from edge_sdk.errors import (
    LearningLost,
    Refused,
    RefusedKnowledge,
    RemoteProtocolError,
    RunFailed,
    StoreError,
    TrainingFailed,
)
from edge_sdk.policy.conditions import Objection
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import (
    Assign,
    CoordinatorStatus,
    FederationSpec,
    Hello,
    LogRequest,
    PublicBlock,
    Receipt,
    Refusal,
    Welcome,
)
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES, PublicFetch
from edge_sdk.terminal import LineBudget
from edge_sdk.transport.base import (
    Connected,
    Disconnected,
    Incoming,
    SendRefused,
    Transport,
    TransportEvent,
)

log = logging.getLogger(__name__)

IDENTITY = "identity"
"""The reason of a refusal because another device has the same id."""
OWN_IDENTITY = "give each device an identity of its own (identity=, --id), and a state folder that is no copy"
CHECK_EVERY_S = 5.0
"""Seconds between two checks that the state is still on the disk."""
DISK_AGAIN_S = 5.0
"""Seconds before a write is tried again after the disk has failed."""


class Participant(ParticipantHooks):
    """A device's part in one federation.  Apps use its subclass `Agent`."""

    _ended_run: tuple[bytes | None, int] | None = None
    """Run and epoch of the last status about the end of a run that this device was not part of."""
    common_knowledge: codec.CommonKnowledge | None = None
    """Decoded knowledge shared by all simulated devices of this process; None outside a simulation."""
    _early: tuple[Assign, Stamp, Frame] | None = None
    """The last Assign that arrived before its Welcome; the broker may have kept it while this device was away."""
    _save_again_s: float | None = None
    """When to retry saving an exchange after a disk fault."""
    _fetch_again_s: float | None = None
    """When to retry fetching the public set after a disk fault."""

    def __init__(
        self,
        *,
        federation: str,
        device: str,
        data: DataSupply,
        transport: Transport,
        store: Store,
        board: str = "",
        fetches_public: bool = False,
        public_cache: Path | None = None,
        max_public_bytes: int = MAX_PUBLIC_BYTES,
        share_weights: bool = False,
        secret: bytes = b"",
        on_new_model: OnNewModel | None = None,
        security: DeviceSecurity | None = None,
    ) -> None:
        """data: holds the model and the public set, too.  secret: the seed of noise, or b"" for that of the store.

        on_new_model: None keeps the model that the state began with.  security: signs outgoing frames and checks
        incoming ones, or None for plain frames.  `Agent` documents the other parameters.
        """
        self.federation, self.device, self.board = federation, device, board
        self.transport, self.store = transport, store
        self._security = security
        self._incoming = IncomingFrames(device, transport, security, self._tell)
        self._stamps = AssignStamps()
        self.data, self.bench = data, data.bench
        data.tell(self.on_news, self.on_class_news)
        self.shares_weights = self.bench.proxy is not None or (
            share_weights and "weights" in self.bench.model.spec.capabilities
        )
        """Whether weights leave this device.  With a proxy they are the proxy's, and never those of its own model."""
        self._nothing_to_share = share_weights and not self.shares_weights
        """The owner set share_weights, but this model has no weights to share."""
        self._secret = secret or store.secret
        self.serve: ServeRequest = self.bench.serve
        """Carries out requests; a simulator replaces it to serve many devices at once."""
        self._uplink = Uplink(
            transport,
            federation=federation,
            device=device,
            boot_epoch=store.boot_epoch,
            signer=security.started() if security else None,
            sealing=security.sealing if security else None,
        )
        fetch = None
        if self.bench.public is None and fetches_public:
            fetch = PublicFetch(public_cache, f"{federation}.{device}", self.refused_frames, max_public_bytes)
        self._supply = PublicSupply(self.bench, fetch, self._uplink)
        self.session = session.SessionState()
        self.instance: bytes | None = None
        """Random bytes of this start, which distinguish two devices with one id; None in simulations."""
        self.refusal: Refused | None = None
        """Why this device cannot take part, or None if it can."""
        self._unanswered_hellos = 0
        """The number of Hellos sent before the first Welcome."""
        self._learner: Learner | None = None
        """None before the first Welcome; each run of the federation gets a new one."""
        self._newest: tuple[Assign, Frame] | None = None
        """The Assign that is being processed, and its frame."""
        self._newest_stamp, self._refused_assigns = Stamp(), RefusedAssigns()
        self._doubt = DoubtedRefusal(self._ask_again)
        self._work: OngoingExchange | None = None
        self.begun = 0
        """The number of exchanges that this object has begun."""
        self.pending_request: Any = None
        """What `serve` yielded at the last pause; a simulator yields the request that it still has to carry out."""
        self.declined: Objection | None = None
        """Why this device declines its assignments, as last reported to the coordinator; None if it computes them."""
        self._now_s, self._check_again_s = 0.0, -math.inf
        """The time of the last call from outside, and when to check next that the state is still on the disk."""
        self._backoff, self._disk_faults = Backoff(), LineBudget(first=1)
        """The pause after failed training, and the limit on lines about a full disk."""
        self._early_news = list[str]()
        """News queued until callbacks can have been registered."""
        self._origin = origin_of(self.bench).to_bytes() if on_new_model is not None else b""
        """Identifies the model that the state began with."""
        self._restore(on_new_model)

    def reopen(self, store: Store) -> None:
        """Start again from a store that may have changed, as a restart of the process would."""
        self.store = store
        self._uplink.begin(store.boot_epoch, self._security.started() if self._security else None)
        self.session = session.SessionState()
        self.refusal, self._learner, self._work, self._newest, self._early = None, None, None, None, None
        self._save_again_s, self._fetch_again_s, self._unanswered_hellos = None, None, 0
        self._doubt.welcomed()
        self._supply.stop()
        self._restore(None)

    @property
    def model_origin(self) -> bytes:
        """The digests of the app's model that the state began with, or empty if they are not kept."""
        return self._origin

    # -- driven from outside ----------------------------------------------------------------------------------------

    @property
    def refused_frames(self) -> Counter[str]:
        """The number of frames that this device refused, by word."""
        return self._incoming.refused

    def raise_if_failed(self) -> None:
        """Raise the Refused or RunFailed that ended the session, if one did."""
        if self.refusal is not None:
            raise self.refusal
        if self.over and self.session.reason:
            raise RunFailed(f"the coordinator ended the run: {self.session.reason}")

    @property
    def missed_the_end(self) -> bool:
        """Whether the run succeeded without this device's closing exchange."""
        return self.session.reason == session.MISSED_THE_END

    @property
    def over(self) -> bool:
        """Whether the session has ended, with success or without."""
        return self.session.phase in (session.SessionPhase.DONE, session.SessionPhase.REFUSED)

    @property
    def working(self) -> bool:
        """Whether an exchange is being computed or stored."""
        return self._work is not None

    @property
    def computing(self) -> bool:
        """Whether `work_slice` has something to do: an exchange that is not computed yet."""
        return self._work is not None and self._work.result is None

    @property
    def unsaved_bytes(self) -> int:
        """Bytes that the current exchange will store besides its upload: the Assign, and the start of a round."""
        return self._work.unsaved_bytes if self._work is not None else 0

    def is_last(self, exchange: int) -> bool:
        """Whether a round ends with this exchange."""
        return self._learner is not None and self._learner.membership.is_last(exchange)

    def completes_personal(self, at: Assign) -> bool:
        """Return whether the device's own, personal model is complete after an exchange, not in the middle of a round.

        Reports measure the personal model here: after a round's training, or at the closing exchange.
        """
        if self._learner is None:
            return False
        membership = self._learner.membership
        return membership.method.personal_after == "arrival" if at.closing else membership.is_last(at.exchange)

    @property
    def meter(self) -> Meter:
        """The effort of all computing so far."""
        return self.bench.meter

    def connect(self) -> None:
        """Connect, with a will through which the broker announces a lost connection."""
        for news in (self._early_news, self.data.early_news):
            while news:
                self.on_news(news.pop(0))
        if self.data.waits:
            self.on_news("no labelled samples to train on yet: this device joins and waits for the first ones")
        self._uplink.connect()

    def next_due_s(self) -> float | None:
        """Return the time in seconds at which `tick` next has something to do, or None if nothing is due."""
        earliest_s = session.session_due_s(self.session)
        for due_s in (self._fetch_due_s(), self._save_again_s, self._doubt.due_s):
            if due_s is not None and (earliest_s is None or due_s < earliest_s):
                earliest_s = due_s
        return earliest_s

    def decline(self, objection: Objection | None) -> None:
        """Announce why this device declines its assignments, or with None that it computes them again."""
        before, self.declined = self.declined, objection
        about = [None if each is None else (each.reason, each.round) for each in (before, objection)]
        if about[0] != about[1] and self.session.linked:
            self._uplink.announce("ready", objection)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Process an event of the transport.  Illegal frames are counted and otherwise ignored.

        If the disk fails, the frame has no effect either, and its sender repeats it.
        """
        self._now_s = now_s
        if isinstance(event, Incoming):
            self._handle_frame(event, now_s)
        elif isinstance(event, Connected):
            self.on_news("connected to the broker")
            self._uplink.announce("ready", self.declined)
            self._feed(session.LinkUp(now_s))
        elif isinstance(event, Disconnected):
            self._disconnected(event)
        elif isinstance(event, SendRefused) and event.too_long:
            self._tell_too_long(event.reason)
        elif isinstance(event, SendRefused):
            self.on_news(
                f"the broker rejects what this device sends on {event.topic}: {event.reason}; "
                f"its access rules must let the user of {self.device} publish there"
            )
        else:
            self._incoming.count_refused(event.kind, f"refused a frame on {event.topic}: {event.reason}")

    def _handle_frame(self, incoming: Incoming, now_s: float) -> None:
        try:
            self._receive(incoming, now_s)
        except RemoteProtocolError as error:
            self._incoming.count_refused(error.kind, f"refused a frame on {incoming.topic}: {error}")
        except StoreError as error:
            self._note_disk_fault(error)
        incoming.acknowledge()

    def _disconnected(self, event: Disconnected) -> None:
        remedy = f"; {OWN_IDENTITY}" if event.taken_over else ""
        if event.taken_over:
            log.warning("%s: %s%s", self.device, event.reason, remedy)
        self.on_news(f"broker: {event.reason}{remedy}")
        self._feed(session.LinkDown())
        if event.final and event.taken_over:
            self._end_refused(Refused(IDENTITY, event.reason, OWN_IDENTITY))
        elif event.final:
            self._end_refused(Refused("transport", event.reason, "start again when that is repaired"))

    def _tell_too_long(self, line: str) -> None:
        """Report to owner and coordinator that uploads exceed the broker's limit; the next connection tries again."""
        self._incoming.tell_once("too-long", f"broker {line}; until then this device's uploads do not arrive")
        self._uplink.announce("ready", Objection("broker-limit", f"broker {line}"))

    def _tell(self, line: str) -> None:
        """Look `on_news` up at each call, because a subclass or an app may replace it later."""
        self.on_news(line)

    def _note_disk_fault(self, error: StoreError) -> None:
        if line := self._disk_faults.line(f"{error}; nothing is learnt until it can be saved", self._now_s):
            log.warning("%s: %s", self.device, line)
            self.on_news(line)

    def check_store(self, now_s: float) -> None:
        """Check every CHECK_EVERY_S that the state file still exists, even while nothing is saved."""
        if now_s < self._check_again_s:
            return
        self._check_again_s = now_s + CHECK_EVERY_S
        try:
            self._say_mended(self.store.check())
        except StoreError as error:
            self._note_disk_fault(error)

    def _say_mended(self, line: str) -> None:
        if line:
            log.warning("%s: %s", self.device, line)
            self.on_news(line)

    def tick(self, now_s: float) -> None:
        """Do what is due now: resend, retry a save, request public blocks, announce the first samples."""
        self._now_s = now_s
        if self.data.arrived():
            self.on_news(f"the first labelled samples are here: {len(self.bench.data.train)} to train on")
            self._feed(session.HelloChanged(now_s))
        if self._save_again_s is not None and now_s >= self._save_again_s:
            self.finish_work(now_s)
        due_s = session.session_due_s(self.session)
        if due_s is not None and now_s >= due_s:
            self._feed(session.SessionTick(now_s))
        due_s = self._fetch_due_s()
        if due_s is not None and now_s >= due_s:
            self._advance_fetching(now_s)
        self._obey(self._doubt.settled(now_s))

    def work_slice(self, reply: Any = None) -> bool:
        """Compute until the next pause between batches; returns whether the exchange is computed.

        reply: the result of `pending_request`, if `serve` yields requests.
        """
        work = self._work
        if work is None or work.result is not None:
            return False
        work.begun = True
        try:
            self.pending_request = work.slices.send(reply)
        except StopIteration as stop:
            work.result = stop.value
            return True
        except LearningLost as reason:
            work.withhold(reason, self.on_news)
            return True
        except RemoteProtocolError as error:  # the Assign's knowledge does not fit
            self._incoming.count_refused(error.kind, f"refused an Assign: {error}")
            unfit = self._refused_assigns.reason(work.assign, self._newest_stamp, error)
            if unfit is not None:
                self._skip_refused(work, unfit)
                work.withhold(unfit, self._tell)
                return True
            self._rebuild()  # treat the frame as never received
            membership = work.learner.membership
            self.session = recovery.restored_session(self.session, session.SessionPhase.IDLE, membership, self.store)
        return False

    def fail_work(self, error: Exception, now_s: float) -> None:
        """Withhold the round whose computation raised an error; repeated failures pause training for a while.

        The device returns to its state before the round.  Raises the error if no exchange is being computed.
        """
        work = self._work
        if work is None or work.done is not None:
            raise error
        log.error("%s: round %d: training failed", self.device, work.assign.round, exc_info=error)
        self._backoff.failed(now_s)
        work.withhold(training_failed(error), self.on_news)

    def finish_work(self, now_s: float) -> None:
        """Store the computed exchange and send its upload; if the disk fails, `tick` tries again later."""
        self._now_s = now_s
        work, self._save_again_s = self._work, None
        if work is None or work.result is None:
            return
        try:
            if work.done is None:
                refused = self._incoming.refused_since()
                work.pack(self.selected_knowledge, self._uplink, self.on_news, self.cost(), refused)
        except RemoteProtocolError as error:
            remedy = "check what this device's model returns; if it is right, upgrade this device's SDK"
            self._leave_refused(Refused("method", f"round {work.assign.round}: {error}", remedy))
            return
        try:
            self._say_mended(self.store.check())
            work.save()
        except StoreError as error:
            self._save_again_s = now_s + DISK_AGAIN_S
            line = f"{error}; round {work.assign.round} is kept, next try in {DISK_AGAIN_S:g} s"
            if limited := self._disk_faults.line(line, now_s):
                self.on_news(limited)
            return
        self._work = None
        if work.withheld is None and self.is_last(work.assign.exchange):
            self._backoff.succeeded()
        self._feed(session.WorkDone(now_s))
        self.on_exchange(work.report())

    # -- frames in --------------------------------------------------------------------------------------------------

    def _receive(self, incoming: Incoming, now_s: float) -> None:
        envelope, frame = self._incoming.opened(incoming.content, self.common_knowledge)
        message = envelope.message
        if message.federation != self.federation or getattr(message, "device", self.device) != self.device:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} for somebody else")
        if isinstance(message, Welcome):
            self._receive_welcome(message, bytes(frame), now_s)
        elif isinstance(message, (Assign, Receipt)) and not self._is_of_this_run(message, envelope.stamp):
            if isinstance(message, Assign) and message.run == self.session.run:
                self._tell_of_going_back(message, envelope.stamp)
            raise RemoteProtocolError("replayed", f"of another run or an earlier start: {type(message).__name__}")
        elif isinstance(message, Assign):
            self._receive_assign(message, envelope.stamp, frame, now_s)
        elif isinstance(message, Receipt):
            if message.verdict == "refused":
                log.warning("%s: upload %s refused: %s", self.device, (message.round, message.exchange), message.reason)
            self._feed(session.Receipted(ExchangeId(message.round, message.exchange), now_s))
        elif isinstance(message, Refusal):
            self._receive_refusal(message, now_s)
        elif isinstance(message, PublicBlock):
            try:
                self._supply.receive(message, now_s)
            except StoreError as error:
                self._fetch_later(error)
        elif isinstance(message, LogRequest):
            self._send_log(message)
        elif isinstance(message, CoordinatorStatus):
            self._receive_status(message, now_s)
        else:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} is not for devices")

    def _receive_refusal(self, refusal: Refusal, now_s: float) -> None:
        """End the session, unless the Refusal answers another start, or another device with this id.

        Without signatures anybody may have sent a Hello in this device's name, so a device that takes part asks again.
        """
        if self._security is not None and (refusal.instance is None or refusal.instance != self.instance):
            # stale (an earlier start), not ours, or a reply to a frame the coordinator could not read
            joining = self.session.phase is session.SessionPhase.JOINING
            if refusal.reason == "encryption" or (refusal.reason == "signature" and joining):
                self._incoming.tell_once(refusal.reason, f"{refusal.message}; {refusal.remedy}")
            return
        if refusal.instance not in (None, self.instance):
            line = f"another device uses this identity, too, and was refused; {OWN_IDENTITY}"
            if self._incoming.tell_once(IDENTITY, line):
                log.warning("%s: %s", self.device, line)
        elif self._security is None and self.session.phase in session.TAKING_PART:
            self._doubt.came(refusal, now_s, names_start=refusal.instance is not None or self.instance is None)
        else:
            self._obey(refusal)

    def _ask_again(self) -> None:
        if self.session.linked:
            self._carry_out(session.SayHello())

    def _obey(self, refusal: Refusal | None) -> None:
        if refusal is None:
            return
        self._doubt.welcomed()
        remedy = refusal.remedy
        if self._nothing_to_share and "share_weights" in remedy:
            remedy += f" (it is set, but {self.bench.model.spec.name} has no weights that can be shared)"
        self._end_refused(Refused(refusal.reason, refusal.message, remedy))

    def _receive_status(self, status: CoordinatorStatus, now_s: float) -> None:
        """Process the coordinator's announcement that it is there, or that the run is over."""
        over = status.state in ("finished", "failed")
        if over:
            self._obey(self._doubt.settled(now_s, over=True))
        reason = status.reason if status.state == "failed" else ""
        if status.state != "lost":
            run, greet = status.run or b"", status.greet
            self._feed(session.CoordinatorSeen(status.epoch, over, reason, now_s, run, greet))
        if over and self.session.phase is session.SessionPhase.JOINING:
            self._tell_of_end(status)

    def _tell_of_end(self, status: CoordinatorStatus) -> None:
        """Report once that the last run is over and no new one has started."""
        if self._ended_run != (status.run, status.epoch):
            self._ended_run = status.run, status.epoch
            how = f"failed: {status.reason}" if status.state == "failed" else "is complete"
            self.on_news(f"the last run of {self.federation} {how}; waits for a coordinator that begins another")

    def _is_of_this_run(self, message: Assign | Receipt, stamp: Stamp) -> bool:
        """Whether a message belongs to this device's run and is at least as new as its last Welcome."""
        if self._learner is None:
            return True  # before a Welcome neither an Assign nor a Receipt has an effect
        unnamed = message.run is None and self._security is None
        return (unnamed or message.run == self.session.run) and stamp.boot_epoch >= self.session.epoch

    def _send_log(self, wanted: LogRequest) -> None:
        lines = self.last_lines()
        if lines is not None:
            self._uplink.send_log(wanted.request, tuple(lines)[-wanted.lines :])

    def _tell_of_going_back(self, assign: Assign, stamp: Stamp) -> None:
        """Report once that the coordinator went back to an earlier round (e.g. restored from a backup)."""
        own = self.session.exchange_id.round
        if self._stamps.shows_loss(stamp, earlier_round=assign.round < own) and self._incoming.tell_once(
            "went-back",
            f"the coordinator assigns round {assign.round + 1}, and this device has begun round {own + 1}: its run "
            "folder came back from an older backup; this device does no round twice, and waits: begin a new run, "
            "or restore a newer folder",
        ):
            done = self.store.finished()
            if done and done[-1].round > assign.round and done[-1].upload:
                self._uplink.send_upload(done[-1].upload)  # shows the coordinator that it has lost rounds

    def _receive_assign(self, assign: Assign, stamp: Stamp, frame: Frame, now_s: float) -> None:
        if self._learner is None or self.session.phase in (session.SessionPhase.JOINING, session.SessionPhase.FETCHING):
            self._early = assign, stamp, frame
            return
        self._tell_of_going_back(assign, stamp)
        if self.declined is not None:
            self._uplink.announce("ready", self.declined)  # the coordinator may have missed the first announcement
        place, reason = ExchangeId(assign.round, assign.exchange), None
        try:
            with legible():
                assign = self._learner.membership.undo_transforms(assign, self.common_knowledge)
        except RemoteProtocolError as error:
            if place >= self.session.exchange_id and is_in_place(self._learner.membership, assign):
                reason = self._refused_assigns.reason(assign, stamp, error)
            if reason is None:
                raise
            self._incoming.count_refused(error.kind, f"refused an Assign: {error}")
            assign, frame = without_knowledge(assign, stamp)
        begun = self.begun
        self._newest, self._newest_stamp = (assign, frame), stamp
        self._feed(session.Assigned(place, assign.closing, now_s))
        if reason is not None and self._work is not None and self.begun > begun:
            self._skip_refused(self._work, reason)
        self._newest = None  # its knowledge may be megabytes, and only the method still needs it

    def _skip_refused(self, work: OngoingExchange, reason: RefusedKnowledge) -> None:
        """Skip a round whose Assign was refused again; the owner reads the reason once per start."""
        line = f"round {work.assign.round}: {reason}; withheld and undone: {reason.remedy}"
        self._incoming.tell_once(reason.code, line)
        work.learner.skip_round(work.assign.round, reason)

    # -- commands out -----------------------------------------------------------------------------------------------

    def _feed(self, event: session.SessionEvent) -> None:
        self.session, commands = session.advance_session(self.session, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: session.SessionCommand) -> None:
        if isinstance(command, session.SendUpload):
            if (frame := self.store.upload(*command.exchange_id)) is not None:
                self._uplink.send_upload(frame)
        elif isinstance(command, session.StartWork):
            self._start_work()
        elif isinstance(command, session.ForgetUpload):
            self.store.mark_receipted(*command.exchange_id)
        elif isinstance(command, session.SayHello):
            self._unanswered_hellos += self._learner is None
            if self._unanswered_hellos == HELLOS_BEFORE_NOTICE:
                self.on_unanswered(self._incoming.unread or no_answer_notice(self.federation, self.device))
            self._uplink.send(self.hello_to_send(self._hello()))
        elif isinstance(command, session.FetchPublic):
            self._begin_fetching()
        elif self._work is not None:
            self._rebuild()  # EndSession during an exchange, which will never count

    def _start_work(self) -> None:
        learner = self._learner
        if self._newest is None or learner is None:
            return
        assign, _ = self._newest
        try:
            if self._work is not None and self._work.begun:
                self._rebuild()  # the abandoned exchange has already changed the model
            if self._backoff.left_s(self._now_s) and not assign.closing:
                failed = f"training failed {self._backoff.failures} times in a row"
                # constant until the next try, so that repeated uploads have the same bytes
                reason = f"{failed}, next try {self._backoff.pause_s:.0f} s after the last"
                learner.skip_round(assign.round, TrainingFailed(reason))
            work = begin_exchange(learner, self.store, *self._newest, self.serve)
            work.slices = self.examine(work, work.slices)
            self._work = work
        except StoreError:  # the repeated Assign begins it
            self.session = dataclasses.replace(self.session, phase=session.SessionPhase.IDLE)
            raise
        self.begun += 1

    # -- the public set ---------------------------------------------------------------------------------------------

    def _fetch_due_s(self) -> float | None:
        if not (self.session.phase is session.SessionPhase.FETCHING and self.session.linked):
            return None
        return self._supply.next_due_s() if self._fetch_again_s is None else self._fetch_again_s

    def _begin_fetching(self) -> None:
        self._fetch_again_s = None
        try:
            self._supply.begin(self.on_news)
        except StoreError as error:
            self._fetch_later(error)

    def _fetch_later(self, error: StoreError) -> None:
        """Retry in a while, from the blocks that are then on the disk."""
        self._supply.stop()
        self._fetch_again_s = self._now_s + DISK_AGAIN_S
        self._note_disk_fault(error)

    def _advance_fetching(self, now_s: float) -> None:
        if self._fetch_again_s is not None:
            self._begin_fetching()
            return
        try:
            complete = self._supply.advance(now_s)
        except RemoteProtocolError as error:
            self._incoming.count_refused(error.kind, str(error))
        except StoreError as error:
            self._fetch_later(error)
        except Refused as refusal:
            self._leave_refused(refusal)
        else:
            if complete:
                self.on_news("the public set is complete")
                self._rebuild()  # computes the exchanges of before a restart, which need the set
                self._feed(session.Fetched(now_s))

    # -- joining ----------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> bytes | None:
        """The id of the run that this device is in, or None before its first Welcome."""
        return None if self._learner is None else self._learner.membership.welcome.run

    def _hello(self) -> Hello:
        return hello(
            self.bench,
            federation=self.federation,
            device=self.device,
            board=self.board,
            shares_weights=self.shares_weights,
            fetches_public=self._supply.fetches,
            instance=self.instance,
            sends_logs=self.last_lines() is not None,
            run=self._run if self._security else None,
        )

    def _receive_welcome(self, welcome: Welcome, frame: bytes, now_s: float) -> None:
        public_before, run_before = self.bench.public, self._run
        self._doubt.welcomed()
        if self._learner is None:
            self._enter_run(welcome, frame)
        elif self._learner.membership.welcome.run != welcome.run:  # the new run starts from the model as trained so far
            self._work = None
            self._supply.stop()
            self.session = session.SessionState(linked=self.session.linked, epoch=welcome.epoch, run=welcome.run)
            self._enter_run(welcome, frame)
        elif self._learner.membership.spec != welcome.spec:
            message = "the federation has other settings than when this device joined"
            self._end_refused(
                Refused("changed", message, "remove FEDERATION.db in this device's state folder to join it again")
            )
            return
        lacks_public_set = self._supply.missing is not None
        refusal = (
            self._beyond_budget()
            or self._other_classes(welcome.spec)
            or self._supply.check_size(welcome.public_bytes)
            or self._too_small_batches()
        )
        if refusal is not None:
            self._leave_refused(refusal)
            return
        unnamed = self._security is not None and run_before != welcome.run  # the Hello did not name the run
        if self.session.phase is session.SessionPhase.JOINING and not unnamed:
            self.on_news(f"accepted by the coordinator: {welcome.spec.method}, {welcome.spec.rounds} rounds")
            if self._learner is not None:
                self.on_news(f"its uploads contain {self._learner.membership.method.discloses}")
        found = self.bench.public is not public_before  # found on the disk; the Hello has not named it yet
        self._feed(session.Welcomed(welcome.epoch, now_s, lacks_public_set or found or unnamed, welcome.run))
        if unnamed or (found and not lacks_public_set):
            self._feed(session.Fetched(now_s))
        self._receive_early(now_s)

    def _receive_early(self, now_s: float) -> None:
        """Process the Assign that came before the Welcome; of a long one only the first chunk would be repeated."""
        if self._early is None or self.session.phase in (session.SessionPhase.JOINING, session.SessionPhase.FETCHING):
            return
        (assign, stamp, frame), self._early = self._early, None
        if self._is_of_this_run(assign, stamp):
            self._receive_assign(assign, stamp, frame, now_s)

    def _beyond_budget(self) -> Refused | None:
        """Return why this device leaves a federation that would reveal more than its privacy budget allows."""
        if self.bench.budget is None or self._learner is None:
            return None
        method = self._learner.membership.method
        return self.bench.budget.refusal(method.name, method.guarantee if method.releases else None)

    def _other_classes(self, spec: FederationSpec) -> Refused | None:
        """Return why this device leaves a federation whose classes have other names, or another order, than its own."""
        why = why_not_alike(self.bench.data.train.class_names, spec.class_names, spec.classes)
        order = ", ".join(map(repr, spec.class_names)) or "the names of all classes in the federation's order"
        remedy = f"give Samples(x, y, class_names=[{order}]), or a SampleStore with classes=[...] in this order"
        return Refused("classes", why, remedy) if why else None

    def _too_small_batches(self) -> Refused | None:
        """Return why this device leaves a federation whose mini-batches are too small for its model.

        A store counts with its capacity, because it may still fill.
        """
        model, samples = self.bench.model.spec, self.bench.capacity or len(self.bench.samples)
        if self._learner is None or not samples:
            return None
        size = min(samples, self._learner.membership.spec.train.batch_size)
        if size >= model.least_batch or not self._learner.membership.method.learnt_by(model.capabilities, model.terms):
            return None
        return Refused(
            "batch",
            f"model {model.name!r} has BatchNorm, which cannot train on mini-batches of {size}",
            "use GroupNorm, or give this device more samples and the federation a larger train.batch_size",
        )

    def _join(self, welcome: Welcome) -> Learner:
        """Set up the learner for a Welcome's federation.  Raises RemoteProtocolError if this device cannot join."""
        has_proxy = self.bench.proxy is not None
        with legible():
            joined = membership.join(
                welcome, self.bench.shared, shares_weights=self.shares_weights, has_proxy=has_proxy
            )
        self._incoming.accept_up_to(joined.limits)
        self._learner = learner = Learner(joined, self.data, secret=self._secret)
        self._supply.require(joined.public)
        return learner

    def _enter_run(self, welcome: Welcome, frame: bytes) -> None:
        """Join a run from its round 0; if the disk fails, the next Welcome tries again."""
        before = self._learner
        try:
            self.store.enter_run(frame, self._join(welcome).snapshot(0), self._origin)
        except StoreError:
            self._learner = before
            raise

    def _restore(self, on_new_model: OnNewModel | None) -> None:
        """Restore the state after the last stored exchange, if this device was in a federation before a restart."""
        welcome = recovery.last_welcome(self.store)
        if welcome is None:
            return
        learner = self._join(welcome)
        if on_new_model is not None:
            self._compare_models(learner, on_new_model)
        self._rebuild()
        joined = session.SessionState(epoch=welcome.epoch, run=welcome.run)
        self.session = recovery.restored_session(joined, session.SessionPhase.JOINING, learner.membership, self.store)

    def _compare_models(self, learner: Learner, wish: OnNewModel) -> None:
        """If the app brings another model than its state began with, choose between that model and the state."""
        brought, before, start = self._origin, self.store.origin(), self.store.round_start()
        if start is None or before in (b"", brought):  # b"": the state is older than its digests
            return
        choice = choose_model(
            self.bench, start.model, ModelOrigin.from_bytes(before), ModelOrigin.from_bytes(brought), wish
        )
        if choice.adopt:
            self.store.adopt(recovery.start_with_new_model(learner, self.store), brought)
        else:
            self._origin = before  # the next start compares again
        log.warning("%s: %s", self.device, choice.line)
        self._early_news.append(choice.line)

    def _rebuild(self) -> None:
        """Abandon the current exchange, and restore the state after the last stored one."""
        self._work = None
        if self._learner is not None:
            recovery.recompute_round(self._learner, self.store, lacks_public_set=self._supply.missing is not None)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def sign_off(self, leaving: str | None = None) -> None:
        """Announce that this device disconnects; leaving: the reason, if it will not come back.

        A device refused as a duplicate stays silent, because its messages would speak for the other device.
        """
        if self.session.linked and not (self.refusal is not None and self.refusal.reason == IDENTITY):
            if leaving is not None:
                self._uplink.say_bye(leaving)
            self._uplink.announce("disconnected")

    def _leave_refused(self, refusal: Refused) -> None:
        """Leave the federation for a reason found here, so that the coordinator stops waiting for this device."""
        self.sign_off(leaving=one_line(refusal.message))
        self._end_refused(refusal)

    def _end_refused(self, refusal: Refused) -> None:
        self.refusal = refusal
        self._feed(session.HelloRefused(str(refusal)))
