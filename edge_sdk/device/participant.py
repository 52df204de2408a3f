"""A device's part in a federation: session, method, model, transport and store, wired together.

What a Welcome brings stands in `membership.py`, what learns in `learner.py`, an exchange under way in `work.py`, the
way back after a restart in `recovery.py`, the public set in `public_supply.py`, and what is said in `uplink.py`.

Nothing here waits or looks at a clock.  Whoever drives it feeds it with frames and time: `handle`, `tick`,
`work_slice`, `finish_work`.  An app's loop does so in `agent.py`, a simulator in virtual time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_sdk.data import LocalData
from edge_sdk.device import membership, recovery, session
from edge_sdk.device.exchange import OngoingExchange, RoundReport, begin_exchange
from edge_sdk.device.introduction import HELLOS_BEFORE_WORD, hello, nobody_answers
from edge_sdk.device.learner import Learner, ServeRequest
from edge_sdk.device.meter import Meter
from edge_sdk.device.public_supply import PublicSupply
from edge_sdk.device.store import Store
from edge_sdk.device.uplink import Uplink
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import Diverged, Refused, RemoteProtocolError, RunFailed, StoreError
from edge_sdk.models.base import Model
from edge_sdk.protocol import codec
from edge_sdk.protocol.codec import CONTROL_LIMITS
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import Assign, CoordinatorStatus, Hello, PublicBlock, Receipt, Refusal, Welcome
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES, PublicFetch
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, Transport, TransportEvent

log = logging.getLogger(__name__)

DISK_AGAIN_S = 5.0
"""Pause before a write that the disk refused is tried again."""


class Participant:
    """A device's part in one federation.  The public face is `Agent`."""

    def __init__(
        self,
        *,
        federation: str,
        device: str,
        model: Model,
        data: LocalData,
        public: PublicSet | None,
        transport: Transport,
        store: Store,
        board: str = "",
        disclose_classes: bool = False,
        public_cache: Path | None = None,
        max_public_bytes: int = MAX_PUBLIC_BYTES,
        share_weights: bool = False,
        secret: bytes = b"",
    ) -> None:
        """secret: what noise is drawn from, in place of the store's own; for simulations, which must repeat."""
        self.federation, self.device, self.board = federation, device, board
        self.bench = Workbench(model, data, public, discloses_classes=disclose_classes)
        self._shares_weights = share_weights and "weights" in model.spec.capabilities
        self._secret = secret or store.secret
        self.model_lock = threading.RLock()
        """Held while the model changes: who takes it sees the model between two batches."""
        self.serve: ServeRequest = self.bench.serve
        """Who carries requests out; a simulator, which does so for many devices at once, puts itself here."""
        self.transport, self.store = transport, store
        self._limits = CONTROL_LIMITS
        """Of frames that come in."""
        transport.accept_up_to(self._limits.frame_bytes)
        self._uplink = Uplink(transport, federation=federation, device=device, boot_epoch=store.boot_epoch)
        self.refused_frames: Counter[str] = Counter()
        fetch = None
        if public is None and public_cache is not None:
            fetch = PublicFetch(public_cache, f"{federation}.{device}", self.refused_frames, max_public_bytes)
        self._supply = PublicSupply(self.bench, fetch, self._uplink, self.model_lock)
        self.session = session.SessionState()
        self.refusal: Refused | None = None
        self._unanswered = 0
        """Hellos said before the first Welcome."""
        self._learner: Learner | None = None
        """From the first Welcome on; each run of the federation has its own."""
        self._newest: tuple[Assign, bytes] | None = None
        """While it is taken in."""
        self._work: OngoingExchange | None = None
        self.begun = 0
        """Exchanges begun in this life."""
        self.asked: Any = None
        """What was yielded in the last pause."""
        self._save_again_s: float | None = None
        """When to try again to save an exchange that the disk refused."""
        self._restore()

    def on_news(self, line: str) -> None:
        """Called when the broker or the coordinator is found or lost, or the disk is full."""

    def on_exchange(self, report: RoundReport) -> None:
        """Called after each exchange, once it is durable; for whoever wants to know."""

    def answer(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:  # noqa: ARG002  # for heirs
        """What is sent of what an exchange computed; a simulation of devices that lie has its own."""
        return knowledge

    # -- driven from outside ----------------------------------------------------------------------------------------

    def raise_if_failed(self) -> None:
        """Raise what ended the session, if it was not success."""
        if self.refusal is not None:
            raise self.refusal
        if self.over and self.session.reason:
            raise RunFailed(f"the coordinator ended the run: {self.session.reason}")

    @property
    def over(self) -> bool:
        """Whether the session has ended, well or not."""
        return self.session.phase in (session.SessionPhase.DONE, session.SessionPhase.REFUSED)

    @property
    def working(self) -> bool:
        """Whether an exchange is under way."""
        return self._work is not None

    @property
    def computing(self) -> bool:
        """Whether `work_slice` has something to do: an exchange is under way and not computed yet."""
        return self._work is not None and self._work.result is None

    @property
    def unsaved_bytes(self) -> int:
        """What the exchange under way will make durable, but for its upload: the Assign, and a round's start."""
        return self._work.unsaved_bytes if self._work is not None else 0

    def is_last(self, exchange: int) -> bool:
        """Whether a round ends with this exchange."""
        return self._learner is not None and self._learner.membership.is_last(exchange)

    @property
    def meter(self) -> Meter:
        """What the work has cost so far."""
        return self.bench.meter

    def connect(self) -> None:
        """Open the link, with a will that tells others when we fall silent."""
        self._uplink.connect()

    def next_due_s(self) -> float | None:
        """When `tick` can next matter."""
        dues_s = (session.next_due_s(self.session), self._fetch_due_s(), self._save_again_s)
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Take in what the transport brought.  A frame that is not legal is counted, and changes nothing."""
        if isinstance(event, Connected):
            self.on_news("connected to the broker")
            self._uplink.announce("ready")
            self._feed(session.LinkUp(now_s))
        elif isinstance(event, Disconnected):
            self.on_news(f"broker: {event.reason}")
            self._feed(session.LinkDown())
            if event.final:
                self._turn_away(Refused("transport", event.reason, "start again when that is mended"))
        elif isinstance(event, Rejected):
            self._count_refused(event.kind, f"refused a frame on {event.topic}: {event.reason}")
        else:
            try:
                self._take(event, now_s)
            except RemoteProtocolError as error:
                self._count_refused(error.kind, f"refused a frame on {event.topic}: {error}")
            event.acknowledge()

    def _count_refused(self, kind: str, line: str) -> None:
        self.refused_frames[kind] += 1
        log.warning("%s: %s", self.device, line)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        if self._save_again_s is not None and now_s >= self._save_again_s:
            self.finish_work(now_s)
        due_s = session.next_due_s(self.session)
        if due_s is not None and now_s >= due_s:
            self._feed(session.SessionTick(now_s))
        due_s = self._fetch_due_s()
        if due_s is not None and now_s >= due_s:
            self._go_on_fetching(now_s)

    def work_slice(self, answer: Any = None) -> bool:
        """Work until the next pause between batches; True when the exchange is computed.

        answer: to what was asked in the pause before, where `serve` asks anything.
        """
        work = self._work
        if work is None or work.result is not None:
            return False
        try:
            with self.model_lock:
                self.asked = work.slices.send(answer)
        except StopIteration as stop:
            work.result = stop.value
            return True
        except Diverged as error:
            work.withhold(str(error), self.on_news)
            return True
        except RemoteProtocolError as error:  # knowledge that came down does not fit: as if the frame never came
            self._count_refused(error.kind, f"refused an Assign: {error}")
            self._rebuild()
            self.session = recovery.stand(self.session, session.SessionPhase.IDLE, work.learner.membership, self.store)
        return False

    def finish_work(self, now_s: float) -> None:
        """Make the computed exchange durable and send it; where the disk refuses, keep it and let `tick` try again."""
        work, self._save_again_s = self._work, None
        if work is None or work.result is None:
            return
        try:
            if work.done is None:
                work.pack(self.answer, self._uplink, self.on_news)
        except RemoteProtocolError as error:
            self._give_up(Refused("method", f"round {work.assign.round}: {error}", "upgrade this device's SDK"))
            return
        try:
            work.save()
        except StoreError as error:
            self._save_again_s = now_s + DISK_AGAIN_S
            self.on_news(f"{error}; round {work.assign.round} is kept, next try in {DISK_AGAIN_S:g} s")
            return
        self._work = None
        self._feed(session.WorkDone(now_s))
        self.on_exchange(work.report())

    # -- frames in --------------------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, now_s: float) -> None:
        message = codec.decode(incoming.frame, self._limits).message
        if message.federation != self.federation or getattr(message, "device", self.device) != self.device:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} for somebody else")
        if isinstance(message, Welcome):
            self._take_welcome(message, incoming.frame, now_s)
        elif isinstance(message, Assign):
            self._take_assign(message, incoming.frame, now_s)
        elif isinstance(message, Receipt):
            if message.verdict == "refused":
                log.warning("%s: upload %s refused: %s", self.device, (message.round, message.exchange), message.reason)
            self._feed(session.Receipted((message.round, message.exchange), now_s))
        elif isinstance(message, Refusal):
            self._turn_away(Refused(message.reason, message.message, message.remedy))
        elif isinstance(message, PublicBlock):
            self._supply.take(message, now_s)
        elif isinstance(message, CoordinatorStatus):
            over = message.state in ("finished", "failed")
            reason = message.reason if message.state == "failed" else ""
            if message.state != "lost":
                self._feed(session.CoordinatorSeen(message.epoch, over, reason, now_s))
        else:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} is not for devices")

    def _take_assign(self, assign: Assign, frame: bytes, now_s: float) -> None:
        if self._learner is None:
            return  # the Welcome is still under way, and so is this Assign, which will be sent again
        assign = self._learner.membership.received(assign)
        self._newest = (assign, frame)
        self._feed(session.Assigned((assign.round, assign.exchange), assign.closing, now_s))
        self._newest = None  # what it brought, megabytes perhaps, is the method's to let go of

    # -- commands out -----------------------------------------------------------------------------------------------

    def _feed(self, event: session.SessionEvent) -> None:
        self.session, commands = session.advance(self.session, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: session.SessionCommand) -> None:
        if isinstance(command, session.SayHello):
            self._unanswered += self._learner is None
            if self._unanswered == HELLOS_BEFORE_WORD:
                self.on_news(nobody_answers(self.federation, self.device))
            self._uplink.send(self._hello())
        elif isinstance(command, session.FetchPublic):
            self._supply.begin(self.on_news)
        elif isinstance(command, session.StartWork):
            self._start_work()
        elif isinstance(command, session.SendUpload):
            if (frame := self.store.upload(*command.place)) is not None:
                self._uplink.send_upload(frame)
        elif isinstance(command, session.ForgetUpload):
            self.store.receipted(*command.place)
        elif self._work is not None:
            self._rebuild()  # the run ended in the midst of an exchange, which will never count

    def _start_work(self) -> None:
        learner = self._learner
        if self._newest is None or learner is None:
            return
        if self._work is not None:
            self._rebuild()  # the model stands somewhere inside an exchange that nobody wants any more
        self._work = begin_exchange(learner, self.store, *self._newest, self.serve)
        self.begun += 1

    def start_over(self) -> None:
        """Begin the exchange under way anew, from where it began: what was computed of it is not to be trusted."""
        work = self._work
        if work is not None:
            self._newest = work.learner.membership.stored_assign(work.frame), work.frame
            self._start_work()
            self._newest = None

    # -- the public set ---------------------------------------------------------------------------------------------

    def _fetch_due_s(self) -> float | None:
        fetching = self.session.phase is session.SessionPhase.FETCHING and self.session.linked
        return self._supply.next_due_s() if fetching else None

    def _go_on_fetching(self, now_s: float) -> None:
        try:
            complete = self._supply.go_on(now_s)
        except RemoteProtocolError as error:
            self._count_refused(error.kind, str(error))
        except Refused as refusal:
            self._give_up(refusal)
        else:
            if complete:
                self.on_news("the public set is complete")
                self._rebuild()  # what an earlier life did with a set that was lost since
                self._feed(session.Fetched(now_s))

    # -- joining ----------------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return hello(
            self.bench,
            federation=self.federation,
            device=self.device,
            board=self.board,
            shares_weights=self._shares_weights,
            fetches_public=self._supply.fetches,
        )

    def _take_welcome(self, welcome: Welcome, frame: bytes, now_s: float) -> None:
        held = self.bench.public
        if self._learner is None:
            learner = self._enter(welcome)
            self.store.save_welcome(frame)
            if self.store.started() is None:
                self.store.save_start(learner.start_of(0))
        elif self._learner.membership.welcome.run != welcome.run:
            self._begin_anew(welcome, frame)
        elif self._learner.membership.spec != welcome.spec:
            message = "the federation has other settings than when this device joined"
            self._turn_away(Refused("changed", message, "remove this device's state folder to join it anew"))
            return
        lacking = self._supply.missing is not None
        refusal = self._supply.offered(welcome.public_bytes)
        if refusal is not None:
            self._give_up(refusal)
            return
        if self.session.phase is session.SessionPhase.JOINING:
            self.on_news(f"taken in by the coordinator: {welcome.spec.method}, {welcome.spec.rounds} rounds")
        found = self.bench.public is not held  # on the disk, which our hello did not know
        self._feed(session.Welcomed(welcome.epoch, now_s, lacking or found))
        if found and not lacking:
            self._feed(session.Fetched(now_s))

    def _enter(self, welcome: Welcome) -> Learner:
        """Begin to learn in the federation that a Welcome describes.  Raises RemoteProtocolError if we cannot."""
        ours = membership.enter(welcome, self.bench.model.spec, shares_weights=self._shares_weights)
        self._limits = ours.limits
        self.transport.accept_up_to(self._limits.frame_bytes)
        self._learner = learner = Learner(ours, self.bench, secret=self._secret, lock=self.model_lock)
        self._supply.want(ours.public)
        return learner

    def _begin_anew(self, welcome: Welcome, frame: bytes) -> None:
        """Another run of the same federation: from round 0, with what the model has learned so far."""
        with self.model_lock:
            self._work = None
            self._supply.stop()
            learner = self._enter(welcome)
            self.store.save_welcome(frame)
            self.store.save_start(learner.start_of(0))
        self.session = session.SessionState(linked=self.session.linked, epoch=welcome.epoch)

    def _restore(self) -> None:
        """After a restart: stand where the last durable exchange left us."""
        welcome = recovery.last_welcome(self.store)
        if welcome is None:
            return
        learner = self._enter(welcome)
        if self.store.started() is None:  # the power went before it was saved
            self.store.save_start(learner.start_of(0))
        self._rebuild()
        joined = session.SessionState(epoch=welcome.epoch)
        self.session = recovery.stand(joined, session.SessionPhase.JOINING, learner.membership, self.store)

    def _rebuild(self) -> None:
        """Give the exchange under way up, and stand where the last durable one left us."""
        self._work = None
        if self._learner is not None:
            recovery.replay(self._learner, self.store, lacking=self._supply.missing is not None)

    # -- going ------------------------------------------------------------------------------------------------------

    def farewell(self, leaving: str | None = None) -> None:
        """Say that we go, and with a reason, that it is for good."""
        if self.session.linked:
            if leaving is not None:
                self._uplink.say_bye(leaving)
            self._uplink.announce("disconnected")

    def _give_up(self, why: Refused) -> None:
        """End our part, for we cannot go on: nobody must wait for us any more."""
        self.farewell(leaving=one_line(why.message))
        self._turn_away(why)

    def _turn_away(self, refusal: Refused) -> None:
        self.refusal = refusal
        self._feed(session.HelloRefused(str(refusal)))
