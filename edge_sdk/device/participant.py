"""A device's part in a federation: takes events and the time, feeds the session, and carries out its commands.

Nothing here waits, reads a clock or has a thread.  A driver calls `handle`, `tick`, `work_slice` and `finish_work` with
events and the time: the loop of `edge_sdk/agent/loop.py` in an app, the virtual clock in a simulation.

The parts share one `DeviceContext`: `joining.py` joins a run and decides which Refusal to obey, `work.py` computes and
stores an exchange, `public_supply.py` fetches the public set, `incoming_frames.py` and `uplink.py` open and send
frames.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from edge_sdk.device import session
from edge_sdk.device.context import DeviceContext
from edge_sdk.device.joining import (
    HELLOS_BEFORE_NOTICE,
    IDENTITY,
    OWN_IDENTITY,
    Joining,
    Refusals,
    hello,
    no_answer_notice,
    own_identity_taken,
)
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.refused_assigns import AssignStamps, NewSamples, is_in_place, without_knowledge
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.device.training.app_model import Wish
from edge_sdk.device.training.public_supply import PublicSupply
from edge_sdk.device.work import Work
from edge_sdk.errors import Refused, RemoteProtocolError, RunFailed, StoreError
from edge_sdk.policy.policy import Objection
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import FOREVER, Assign, CoordinatorStatus, PublicBlock, Receipt, Refusal, Welcome
from edge_sdk.protocol.model_offers import ModelOffer
from edge_sdk.protocol.operator_messages import LogRequest
from edge_sdk.transport.base import (
    Connected,
    Disconnected,
    Incoming,
    LinkNotice,
    SendRefused,
    TransportEvent,
)

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
"""Seconds between two checks that the state is still on the disk."""


class Participant:
    """A device's part in one federation."""

    def __init__(self, context: DeviceContext, on_new_model: Wish | None = None) -> None:
        """on_new_model: what to do if the app brings another model than the state began with.  None keeps the state."""
        self.context = context
        security = context.security
        self.uplink = Uplink(
            context.transport,
            federation=context.federation,
            device=context.device,
            boot_epoch=context.store.boot_epoch,
            signer=security.started() if security else None,
            sealing=security.sealing if security else None,
        )
        self.incoming = IncomingFrames(context)
        self._supply = PublicSupply(context, self.uplink, self.incoming.refused)
        self.joining = Joining(context, self.incoming, self._supply, keeps_origin=on_new_model is not None)
        self.work = Work(context, self.incoming, self.uplink, self._supply)
        self._refusals = Refusals(context, self.incoming, self._ask_again)
        self._stamps = AssignStamps()
        self.new_samples = NewSamples(context)
        self.declined: Objection | None = None
        """Why this device declines its assignments, as last reported; None while it computes them."""
        self._check_again_s = -math.inf
        """When to check next that the state is still on the disk."""
        self._begin(on_new_model)

    def reopen(self) -> None:
        """Start again from the store of the context, as a restart of the process would."""
        security = self.context.security
        self.uplink.begin(self.context.store.boot_epoch, security.started() if security else None)
        self._supply.stop()
        self._begin(None)

    def _begin(self, on_new_model: Wish | None) -> None:
        """Take up the stored state after the last stored exchange, if this device was in a federation before."""
        context = self.context
        context.session, context.learner = SessionState(), None
        self.refusal: Refused | None = None
        """Why this device cannot take part, or None if it can."""
        self._early: tuple[Assign, Frame, Stamp] | None = None
        """The last Assign that came before its Welcome; the broker may have kept it while this device was away."""
        self._newest: tuple[Assign, Frame, Stamp] | None = None
        """The Assign that is being processed."""
        self._unanswered_hellos = 0
        """The number of Hellos sent before the first Welcome."""
        self._ended_run: tuple[bytes | None, int] | None = None
        """Run and epoch of the last status about the end of a run that this device was not part of."""
        self._refusals.welcomed()
        self.work.save_again_s = self.work.current = None
        if self.joining.restore(on_new_model):
            self.work.abandon()
            context.session = self.joining.restored_session()

    # -- what a driver asks -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the session has ended, with success or without."""
        return self.context.session.phase in (SessionPhase.DONE, SessionPhase.REFUSED)

    @property
    def missed_the_end(self) -> bool:
        """Whether the run succeeded without this device's closing exchange."""
        return self.context.session.reason == session.MISSED_THE_END

    def raise_if_failed(self) -> None:
        """Raise the Refused or RunFailed that ended the session, if one did."""
        if self.refusal is not None:
            raise self.refusal
        if self.over and self.context.session.reason:
            raise RunFailed(f"the coordinator ended the run: {self.context.session.reason}")

    def next_due_s(self) -> float | None:
        """Return the time in seconds at which `tick` next has something to do, or None if nothing is due."""
        earliest_s = session.session_due_s(self.context.session)
        for due_s in (self._supply.next_due_s(), self.work.save_again_s, self._refusals.due_s):
            if due_s is not None and (earliest_s is None or due_s < earliest_s):
                earliest_s = due_s
        return earliest_s

    @property
    def rests(self) -> bool:
        """Whether its store, its session and the number of frames sent hold its whole state.

        The models that its app predicts with belong to the examiner, and do not count.
        """
        context, work = self.context, self.work
        state = context.session
        done = state.phase is SessionPhase.IDLE and not (state.pending or state.unfinished or work.busy)
        odd = self.declined or self._early or self.incoming.refused or work.troubled
        return done and not odd and context.learner is not None and context.learner.skipped_round is None

    # -- what a driver does -----------------------------------------------------------------------------------------

    def take_over(self, state: SessionState, sent: int) -> None:
        """Continue in place of a participant that had the same store and rested in this session.

        sent: the number of frames that it has sent.
        """
        self.context.session, self.uplink.sent = state, sent

    def connect(self) -> None:
        """Connect, with a will through which the broker announces a lost connection."""
        context = self.context
        for news in (context.early_news, context.data.early_news):
            while news:
                context.owner.news(news.pop(0))
        if context.data.waits:
            context.owner.news("no labelled samples to train on yet: this device joins and waits for the first ones")
        self.uplink.connect()

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Process an event of the transport.  Illegal frames are counted and otherwise ignored.

        If the disk fails, the frame has no effect either, and its sender repeats it.
        """
        self.context.now_s = now_s
        if isinstance(event, Incoming):
            self._handle_frame(event, now_s)
        elif isinstance(event, Connected):
            self.context.owner.news("connected to the broker")
            self.uplink.announce("ready", self.declined)
            self._feed(session.LinkUp(now_s))
        elif isinstance(event, Disconnected):
            self._disconnected(event, now_s)
        elif isinstance(event, LinkNotice):
            self.context.owner.news(event.text)
        elif isinstance(event, SendRefused) and event.too_long:
            self._tell_too_long(event.reason)
        elif isinstance(event, SendRefused):
            rule = f"its access rules must let the user of {self.context.device} publish there"
            if self.context.security is not None:
                rule = f"a lab's broker allows it once a coordinator with --lab has served {self.context.federation!r}"
            self.context.owner.news(
                f"the broker rejects what this device sends on {event.topic}: {event.reason}; {rule}"
            )
        else:
            self.incoming.count_refused(event.kind, f"refused a frame on {event.topic}: {event.reason}")

    def tick(self, now_s: float) -> None:
        """Do what is due now: resend, retry a save, request public blocks, announce the first samples."""
        self.context.now_s = now_s
        if self.context.data.arrived():
            samples = len(self.context.bench.data.train)
            self.context.owner.news(f"the first labelled samples are here: {samples} to train on")
            self._feed(session.HelloChanged(now_s))
        if self.new_samples.look(now_s):
            self.decline(None)
        if self.work.save_again_s is not None and now_s >= self.work.save_again_s:
            self.finish_work(now_s)
        due_s = session.session_due_s(self.context.session)
        if due_s is not None and now_s >= due_s:
            self._feed(session.SessionTick(now_s))
        due_s = self._supply.next_due_s()
        if due_s is not None and now_s >= due_s:
            self._advance_fetching(now_s)
        offers = self.context.offers
        if offers is not None and offers.tick(now_s, idle=not self.work.begun_one):
            self._ask_again()
        self._end_if(self._refusals.settled(now_s))

    def work_slice(self, reply: Any = None) -> bool:
        """Compute until the next pause between batches; returns whether the exchange is computed.

        reply: the result of `work.pending_request`, if `serve` yields requests.
        """
        return self.work.slice(reply)

    def finish_work(self, now_s: float) -> None:
        """Store the computed exchange and send its upload; if the disk fails, `tick` tries again later."""
        self.context.now_s = now_s
        try:
            work = self.work.finish(now_s)
        except Refused as refusal:
            self._leave_refused(refusal)
            return
        if work is None:
            return
        self._feed(session.WorkDone(now_s))
        if self.context.examiner is not None:
            self.context.examiner.settle(withheld=work.withheld is not None)
        self.context.owner.stored(work.report(), round_ends=work.ends_round)

    def check_store(self, now_s: float) -> None:
        """Check every CHECK_EVERY_S that the state file still exists, even while nothing is saved."""
        if now_s < self._check_again_s:
            return
        self._check_again_s = now_s + CHECK_EVERY_S
        try:
            self.context.check_store()
        except StoreError as error:
            self.context.note_disk_fault(error)

    def decline(self, objection: Objection | None) -> None:
        """Announce why this device declines its assignments, or with None that it computes them again."""
        before, self.declined = self.declined, objection
        about = [None if each is None else (each.reason, each.round) for each in (before, objection)]
        if about[0] != about[1] and self.context.session.linked:
            self.uplink.announce("ready", objection)

    def sign_off(self, leaving: str | None = None) -> None:
        """Announce that this device disconnects; leaving: the reason, if it will not come back.

        A device refused as a duplicate stays silent, because its messages would speak for the other device.
        """
        if self.context.session.linked and not (self.refusal is not None and self.refusal.reason == IDENTITY):
            if leaving is not None:
                self.uplink.say_bye(leaving)
            self.uplink.announce("disconnected")

    # -- the link ---------------------------------------------------------------------------------------------------

    def _handle_frame(self, incoming: Incoming, now_s: float) -> None:
        try:
            self._receive(incoming, now_s)
        except RemoteProtocolError as error:
            self.incoming.count_refused(error.kind, f"refused a frame on {incoming.topic}: {error}")
        except StoreError as error:
            self.context.note_disk_fault(error)
        incoming.acknowledge()

    def _disconnected(self, event: Disconnected, now_s: float) -> None:
        context, remedy = self.context, f"; {OWN_IDENTITY}" if event.taken_over else ""
        if event.taken_over:
            log.warning("%s: %s%s", context.device, event.reason, remedy)
        elif not event.final:
            context.owner.link_lost(event.reason, now_s)
        context.owner.news(f"broker: {event.reason}{remedy}")
        self._feed(session.LinkDown())
        if event.final and event.taken_over:
            self._end_refused(own_identity_taken(event.reason))
        elif event.final:
            self._end_refused(Refused("transport", event.reason, "repair this, and start again"))

    def _tell_too_long(self, line: str) -> None:
        """Report to owner and coordinator that uploads exceed the broker's limit; the next connection tries again."""
        self.incoming.tell_once("too-long", f"broker {line}; until then this device's uploads do not arrive")
        self.uplink.announce("ready", Objection("broker-limit", f"broker {line}"))

    # -- frames in --------------------------------------------------------------------------------------------------

    def _receive(self, incoming: Incoming, now_s: float) -> None:
        envelope, frame = self.incoming.opened(incoming.content)
        message, own = envelope.message, self.context.device
        if message.federation != self.context.federation or getattr(message, "device", own) != own:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} for another device")
        if isinstance(message, Welcome):
            self._receive_welcome(message, bytes(frame), now_s)
        elif isinstance(message, (Assign, Receipt, ModelOffer)) and not self._is_of_this_run(message, envelope.stamp):
            if isinstance(message, Assign) and message.run == self.context.session.run:
                self._tell_of_going_back(message, envelope.stamp)
            raise RemoteProtocolError("replayed", f"a {type(message).__name__} of another run or an earlier start")
        elif isinstance(message, Assign):
            self._receive_assign(message, frame, envelope.stamp, now_s)
        elif isinstance(message, Receipt):
            if message.verdict == "refused":
                log.warning("%s: upload %s refused: %s", own, (message.round, message.exchange), message.reason)
            self._feed(session.Receipted(ExchangeId(message.round, message.exchange), now_s))
        elif isinstance(message, Refusal):
            self._end_if(self._refusals.received(message, now_s))
        elif isinstance(message, ModelOffer):
            if self.context.offers is None:
                raise RemoteProtocolError("knowledge", "a model is offered, and the owner of this device accepts none")
            self.context.offers.offered(message)
        elif isinstance(message, PublicBlock):
            if self.context.offers is None or not self.context.offers.receive(message, now_s):
                self._supply.receive(message, now_s)
        elif isinstance(message, LogRequest):
            lines = self.context.owner.last_lines()
            if lines is not None:
                self.uplink.send_log(message.request, tuple(lines)[-message.lines :])
        elif isinstance(message, CoordinatorStatus):
            self._receive_status(message, now_s)
        else:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} is not for devices")

    def _receive_status(self, status: CoordinatorStatus, now_s: float) -> None:
        """Process the coordinator's announcement that it is running, or that the run is over."""
        over = status.state in ("finished", "failed")
        if over:
            self._end_if(self._refusals.settled(now_s, over=True))
        reason = status.reason if status.state == "failed" else ""
        if status.state != "lost":
            run, greet = status.run or b"", status.greet
            self._feed(session.CoordinatorSeen(status.epoch, over, reason, now_s, run, greet))
        ended, joining = (status.run, status.epoch), self.context.session.phase is SessionPhase.JOINING
        if over and joining and self._ended_run != ended:
            self._ended_run = ended
            how = f"failed: {reason}" if status.state == "failed" else "is complete"
            self.context.owner.news(
                f"the last run of {self.context.federation} {how}; waiting for a coordinator to begin another"
            )

    def _is_of_this_run(self, message: Assign | Receipt | ModelOffer, stamp: Stamp) -> bool:
        """Whether a message belongs to this device's run and is at least as new as its last Welcome."""
        if self.context.learner is None:
            return True  # before a Welcome neither an Assign nor a Receipt has an effect
        unnamed = message.run is None and self.context.security is None
        return (unnamed or message.run == self.context.session.run) and stamp.boot_epoch >= self.context.session.epoch

    def _tell_of_going_back(self, assign: Assign, stamp: Stamp) -> None:
        """Report once that the coordinator went back to an earlier round (e.g. restored from a backup)."""
        own = self.context.session.exchange_id.round
        if self._stamps.shows_loss(stamp, earlier_round=assign.round < own) and self.incoming.tell_once(
            "went-back",
            f"the coordinator assigns round {assign.round + 1}, but this device has begun round {own + 1}: the run "
            "folder was restored from an older backup; this device repeats no round, and waits: begin a new run, "
            "or restore a newer folder",
        ):
            done = self.context.store.finished()
            if done and done[-1].round > assign.round and done[-1].upload:
                self.uplink.send_upload(done[-1].upload)  # shows the coordinator that it has lost rounds

    def _receive_assign(self, assign: Assign, frame: Frame, stamp: Stamp, now_s: float) -> None:
        membership = self.context.membership
        if membership is None or self.context.session.phase in (SessionPhase.JOINING, SessionPhase.FETCHING):
            self._early = assign, frame, stamp
            return
        self._tell_of_going_back(assign, stamp)
        if self.declined is not None:
            self.uplink.announce("ready", self.declined)  # the coordinator may have missed the first announcement
        if not self.new_samples.allow(assign, now_s):
            self.decline(self.new_samples.objection)
            return
        place, reason = ExchangeId(assign.round, assign.exchange), None
        try:
            with legible():
                assign = membership.undo_transforms(assign, self.context.common_knowledge)
        except RemoteProtocolError as error:
            if place >= self.context.session.exchange_id and is_in_place(membership, assign):
                reason = self.work.refused.reason(assign, stamp, error)
            if reason is None:
                raise
            self.incoming.count_refused(error.kind, f"refused an Assign: {error}")
            assign, frame = without_knowledge(assign, stamp)
        begun = self.work.begun
        self._newest = assign, frame, stamp
        self._feed(session.Assigned(place, assign.closing, now_s))
        if reason is not None and self.work.begun > begun:
            self.work.skip_refused(reason)
        self._newest = None  # its knowledge may be megabytes, and only the method still needs it

    # -- commands out -----------------------------------------------------------------------------------------------

    def _feed(self, event: session.SessionEvent) -> None:
        self.context.session, commands = session.advance_session(self.context.session, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: session.SessionCommand) -> None:
        store = self.context.store
        if isinstance(command, session.SendUpload):
            if (frame := store.upload(*command.exchange_id)) is not None:
                self.uplink.send_upload(frame)
        elif isinstance(command, session.StartWork):
            if self._newest is not None and self.context.learner is not None:
                self.work.begin(self.context.learner, *self._newest)
        elif isinstance(command, session.ForgetUpload):
            store.mark_receipted(*command.exchange_id)
        elif isinstance(command, session.SayHello):
            self._say_hello()
        elif isinstance(command, session.FetchPublic):
            self._supply.begin()
        elif self.work.current is not None:
            self.work.abandon()  # EndSession during an exchange, which will never count

    def _say_hello(self) -> None:
        context = self.context
        self._unanswered_hellos += context.learner is None
        if self._unanswered_hellos == HELLOS_BEFORE_NOTICE:
            notice = self.incoming.unread or no_answer_notice(context)
            context.owner.unanswered(notice)
        said = hello(context)
        self.uplink.send(said if context.outgoing is None else context.outgoing.hello(said))

    def _ask_again(self) -> None:
        """Say Hello: to learn whether a Refusal came from the coordinator, or to answer an offer."""
        if self.context.session.linked:
            self._say_hello()

    def _advance_fetching(self, now_s: float) -> None:
        try:
            complete = self._supply.advance(now_s)
        except RemoteProtocolError as error:
            self.incoming.count_refused(error.kind, str(error))
        except Refused as refusal:
            self._leave_refused(refusal)
        else:
            if complete:
                self.context.owner.news("the public set is complete")
                self.work.abandon()  # computes the exchanges of before a restart, which need the set
                self._feed(session.Fetched(now_s))

    # -- joining and leaving ----------------------------------------------------------------------------------------

    def _receive_welcome(self, welcome: Welcome, frame: bytes, now_s: float) -> None:
        context, joined = self.context, self.context.membership
        public_before, run_before = context.bench.public, context.run
        self._refusals.welcomed()
        if joined is None:
            self.joining.enter_run(welcome, frame)
        elif joined.welcome.run != welcome.run:  # the new run starts from the model as trained so far
            self.work.current = None
            self._supply.stop()
            context.session = SessionState(linked=self.context.session.linked, epoch=welcome.epoch, run=welcome.run)
            self.joining.enter_run(welcome, frame)
        elif joined.spec != welcome.spec:
            message = "the federation has other settings than when this device joined"
            remedy = "remove FEDERATION.db in this device's state folder to join it again"
            self._end_refused(Refused("changed", message, remedy))
            return
        lacks_public_set = self._supply.missing is not None
        refusal = self.joining.objection(welcome)
        if refusal is not None:
            self._leave_refused(refusal)
            return
        unnamed = context.security is not None and run_before != welcome.run  # the Hello did not name the run
        if self.context.session.phase is SessionPhase.JOINING and not unnamed:
            count = welcome.spec.rounds
            rounds = "rounds without an end" if count == FOREVER else f"{count} round{'s' * (count != 1)}"
            context.owner.news(f"accepted by the coordinator: {welcome.spec.method}, {rounds}")
            if context.membership is not None:
                context.owner.news(f"its uploads contain {context.membership.method.discloses}")
        found = context.bench.public is not public_before  # found on the disk; the Hello has not named it yet
        self._feed(session.Welcomed(welcome.epoch, now_s, lacks_public_set or found or unnamed, welcome.run))
        if unnamed or (found and not lacks_public_set):
            self._feed(session.Fetched(now_s))
        self._receive_early(now_s)

    def _receive_early(self, now_s: float) -> None:
        """Process the Assign that came before the Welcome; the coordinator repeats only a long one's first chunk."""
        if self._early is None or self.context.session.phase in (SessionPhase.JOINING, SessionPhase.FETCHING):
            return
        (assign, frame, stamp), self._early = self._early, None
        if self._is_of_this_run(assign, stamp):
            self._receive_assign(assign, frame, stamp, now_s)

    def _end_if(self, refusal: Refused | None) -> None:
        if refusal is not None:
            self._end_refused(refusal)

    def _leave_refused(self, refusal: Refused) -> None:
        """Leave the federation for a reason found here, so that the coordinator stops waiting for this device."""
        self.sign_off(leaving=one_line(refusal.message))
        self._end_refused(refusal)

    def _end_refused(self, refusal: Refused) -> None:
        self.refusal = refusal
        self._feed(session.HelloRefused(str(refusal)))
