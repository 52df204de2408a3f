"""A device's part in a federation: session, method, model, transport and store, wired together.

Nothing here waits or looks at a clock.  Whoever drives it feeds it with frames and time: `handle`, `tick`,
`work_slice`, `finish_work`.  An app's loop does so in `agent.py`, a simulator in virtual time.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import edge_sdk
from edge_sdk import divergence, session
from edge_sdk.data import LocalData
from edge_sdk.errors import (
    Diverged,
    LocalProtocolError,
    ProtocolError,
    Refused,
    RemoteProtocolError,
    RunFailed,
    StoreError,
    UsageError,
)
from edge_sdk.meter import Meter
from edge_sdk.methods.base import ClientMethod, Evaluate, Job, Request, Step
from edge_sdk.models.base import Model
from edge_sdk.protocol import codec, keep, topics, transforms
from edge_sdk.protocol.codec import CONTROL_LIMITS, Limits, Stamp
from edge_sdk.protocol.encodings import ENCODINGS, PLAIN
from edge_sdk.protocol.knowledge import Expect, Payload
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import (
    Assign,
    Bye,
    CoordinatorStatus,
    DeviceStatus,
    FederationSpec,
    Hello,
    Message,
    PublicBlock,
    PublicRequest,
    PublicSetSpec,
    Receipt,
    Refusal,
    Upload,
    Welcome,
)
from edge_sdk.protocol.wires import (
    Contract,
    Exchange,
    Slot,
    check_roles,
    expectation,
    expected_weights,
    frame_limits,
    load_registered,
)
from edge_sdk.public import PublicSet
from edge_sdk.public_fetch import MAX_PUBLIC_BYTES, PublicFetch
from edge_sdk.store import Done, RoundStart, Store
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, Transport, TransportEvent, Will
from edge_sdk.workbench import Workbench

log = logging.getLogger(__name__)

DISK_AGAIN_S = 5.0
"""Pause before a write that the disk refused is tried again."""
_HELLOS_BEFORE_WORD = 4
"""So many go unanswered, some seconds, before we say that nobody is there."""
MAX_DISCLOSED_CLASSES = 32768
"""What a Hello has room for; a model with more classes keeps its counts to itself."""

_KINDS: Mapping[type, str] = {Hello: "hello", Upload: "upd", Bye: "bye", PublicRequest: "get"}


@dataclass
class _Taken:
    """What a Welcome brought: the federation, and our place in it."""

    welcome: Welcome
    method: ClientMethod[Any]
    contract: Contract[Any]
    """The method's, under the federation's parameters."""
    rows: tuple[Exchange, ...]
    closing: Exchange
    limits: Limits
    chain: transforms.Chain

    @property
    def spec(self) -> FederationSpec:
        return self.welcome.spec


@dataclass
class _Measured:
    """What an evaluation within an exchange found."""

    rounds_done: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


_Slices: TypeAlias = Generator[Any, Any, tuple[Any, Mapping[str, Payload]]]
Serve: TypeAlias = Callable[[Request, Job], Generator[Any, Any, Any]]
"""Carries a method's request out, pausing now and then; what it yields in a pause is for whoever drives us."""


@dataclass
class _Work:
    """One exchange under way."""

    assign: Assign
    """Without what it brought."""
    frame: bytes
    start: RoundStart | None
    measured: _Measured
    slices: _Slices
    result: tuple[Any, Mapping[str, Payload]] | None = None
    withheld: str = ""
    """Why nothing is shared: what was learned diverged."""
    done: Done | None = None
    """The result as it is stored and sent."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one exchange brought."""

    round: int
    exchange: int
    closing: bool
    metrics: Mapping[str, float]
    """What the device measured of itself in it; empty where it did not."""
    metrics_round: int
    """The number of completed rounds that the metrics describe."""
    withheld: str = ""
    """Why the device shared nothing and went back to its state before the round; empty: it did not."""


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
        self._class_counts = data.class_counts(model.spec.classes)
        self._disclosed = self._class_counts if disclose_classes else ()
        self._shares_weights = share_weights and "weights" in model.spec.capabilities
        self.transport, self.store = transport, store
        self._secret = secret or store.secret
        transport.accept_up_to(CONTROL_LIMITS.frame_bytes)
        self._sequence = 0
        self._taken: _Taken | None = None
        self._public_bytes = 0
        self._method_state: Any = None
        self._work: _Work | None = None
        self._diverged: tuple[int, str] | None = None
        """The round that this device sits out, and why."""
        self._save_again_s: float | None = None
        """When to try again to save an exchange that the disk refused."""
        self._newest: tuple[Assign, bytes] | None = None
        """While it is taken in."""
        self.model_lock = threading.RLock()
        """Held while the model changes: who takes it sees the model between two batches."""
        self.refusal: Refused | None = None
        self._unanswered = 0
        """Hellos said before the first Welcome."""
        self.begun = 0
        """Exchanges begun in this life."""
        self.serve: Serve = self.bench.serve
        """Who carries requests out; a simulator, which does so for many devices at once, puts itself here."""
        self.asked: Any = None
        """What was yielded in the last pause."""
        self.refused_frames: Counter[str] = Counter()
        self._fetch: PublicFetch | None = None
        """Where the public set comes from, if its owner gave none."""
        if public is None and public_cache is not None:
            owner = f"{federation}.{device}"
            self._fetch = PublicFetch(public_cache, owner, self.refused_frames, max_public_bytes)
        self.session = session.SessionState()
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
        return self.session.phase in (session.Phase.DONE, session.Phase.REFUSED)

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
        if self._work is None:
            return 0
        start = self._work.start
        return len(self._work.frame) + (len(start.model) + len(start.method) if start is not None else 0)

    @property
    def meter(self) -> Meter:
        """What the work has cost so far."""
        return self.bench.meter

    def connect(self) -> None:
        """Open the link, with a will that tells others when we fall silent."""
        lost = DeviceStatus(federation=self.federation, device=self.device, state="lost", boot=self.store.boot_epoch)
        will = Will(topics.device_status(self.federation, self.device), codec.encode(lost, self._stamp()))
        self.transport.connect(topics.device_subscriptions(self.federation, self.device), will)

    def next_due_s(self) -> float | None:
        """When `tick` can next matter."""
        dues_s = (session.next_due_s(self.session), self._fetch_due_s(), self._save_again_s)
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Take in what the transport brought.  A frame that is not legal is counted, and changes nothing."""
        if isinstance(event, Connected):
            self.on_news("connected to the broker")
            self._status("ready")
            self._feed(session.LinkUp(now_s))
        elif isinstance(event, Disconnected):
            self.on_news(f"broker: {event.reason}")
            self._feed(session.LinkDown())
            if event.final:
                self._turn_away(Refused("transport", event.reason, "start again when that is mended"))
        elif isinstance(event, Rejected):
            self._refuse_frame(event.topic, event.kind, event.reason)
        else:
            try:
                self._take(event, now_s)
            except RemoteProtocolError as error:
                self._refuse_frame(event.topic, error.kind, str(error))
            event.acknowledge()

    def _refuse_frame(self, topic: str, kind: str, reason: str) -> None:
        self.refused_frames[kind] += 1
        log.warning("%s: refused a frame on %s: %s", self.device, topic, reason)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        if self._save_again_s is not None and now_s >= self._save_again_s:
            self.finish_work(now_s)
        due_s = session.next_due_s(self.session)
        if due_s is not None and now_s >= due_s:
            self._feed(session.Tick(now_s))
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
            self._withhold(work, str(error))
            return True
        except RemoteProtocolError as error:  # knowledge that came down does not fit: as if the frame never came
            self.refused_frames[error.kind] += 1
            log.warning("%s: refused an Assign: %s", self.device, error)
            self._rebuild()
            self._stand(session.Phase.IDLE)
        return False

    def _withhold(self, work: _Work, reason: str) -> None:
        """Share nothing of this exchange, and stand again where the round began."""
        start = work.start or self.store.start()
        if start is not None:
            self._reload(start)
        if work.assign.round != (self._diverged or (-1, ""))[0]:
            self._diverged = work.assign.round, reason
            self.on_news(f"round {work.assign.round}: {reason}; withheld and undone: {divergence.REMEDY}")
        work.result, work.withheld, work.measured = (self._method_state, {}), one_line(reason), _Measured()

    def finish_work(self, now_s: float) -> None:
        """Make the computed exchange durable and send it; where the disk refuses, keep it and let `tick` try again."""
        work, self._save_again_s = self._work, None
        if work is None or work.result is None:
            return
        if work.done is None:
            state, knowledge = work.result
            work.result = (state, {})  # a whole model, perhaps: it goes when its frame is there
            work.done = self._packed(work, knowledge)
            del knowledge
        if work.done is None:
            return
        try:
            self.store.save(work.done, work.start)
        except StoreError as error:
            self._save_again_s = now_s + DISK_AGAIN_S
            self.on_news(f"{error}; round {work.done.round} is kept, next try in {DISK_AGAIN_S:g} s")
            return
        self._method_state, self._work = work.result[0], None
        self._feed(session.WorkDone(now_s))
        assign, measured = work.assign, work.measured
        self.on_exchange(
            RoundReport(
                assign.round, assign.exchange, assign.closing, measured.metrics, measured.rounds_done, work.withheld
            )
        )

    def _packed(self, work: _Work, knowledge: Mapping[str, Payload]) -> Done | None:
        """The exchange with the frame of its upload; None where that would not be legal, and nobody waits for it."""
        assign, taken = work.assign, self._require_taken()
        try:
            knowledge = self.answer(assign, knowledge)
            self._check(knowledge, self._row_of(assign).up if not work.withheld else {}, taken.spec)
            knowledge = taken.chain.apply(knowledge)
        except (Diverged, LocalProtocolError) as error:  # not finite; or too large for the federation's encoding
            self._withhold(work, str(error))
            knowledge = {}
        except ProtocolError as error:
            self._give_up(Refused("method", f"round {assign.round}: {error}", "upgrade this device's SDK"))
            return None
        upload = Upload(
            federation=self.federation,
            device=self.device,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            samples=len(self.bench.data.train),
            metrics=work.measured.metrics,
            metrics_round=work.measured.rounds_done,
            withheld="" if assign.closing else work.withheld,
            knowledge=knowledge,
        )
        return Done(assign.round, assign.exchange, work.frame, codec.encode(upload, self._stamp()))

    def _check(self, knowledge: Mapping[str, Payload], slots: Mapping[str, Slot], spec: FederationSpec) -> None:
        """Raise Diverged for numbers that are unfit to use, RemoteProtocolError for whatever else may not be sent."""
        try:
            check_roles(knowledge, slots, self._expect(spec))  # which looks at the numbers, too
        except RemoteProtocolError:
            divergence.check_knowledge(knowledge)
            raise

    def _give_up(self, why: Refused) -> None:
        """End our part, for we cannot go on: nobody must wait for us any more."""
        self.farewell(leaving=one_line(why.message))
        self._turn_away(why)

    # -- frames in --------------------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, now_s: float) -> None:
        limits = self._taken.limits if self._taken else CONTROL_LIMITS
        envelope = codec.decode(incoming.frame, limits)
        message = envelope.message
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
            if self._fetch is not None:
                self._fetch.take(message, now_s)
        elif isinstance(message, CoordinatorStatus):
            over = message.state in ("finished", "failed")
            reason = message.reason if message.state == "failed" else ""
            if message.state != "lost":
                self._feed(session.CoordinatorSeen(message.epoch, over, reason, now_s))
        else:
            raise RemoteProtocolError("topic", f"a {type(message).__name__} is not for devices")

    def _take_welcome(self, welcome: Welcome, frame: bytes, now_s: float) -> None:
        held = self.bench.public
        if self._taken is None:
            self._enter(welcome)
            self.store.save_welcome(frame)
            if self.store.started() is None:
                self.store.save_start(self._round_start(0))
        elif self._taken.welcome.run != welcome.run:
            self._begin_anew(welcome, frame)
        elif self._taken.spec != welcome.spec:
            message = "the federation has other settings than when this device joined"
            self._turn_away(Refused("changed", message, "remove this device's state folder to join it anew"))
            return
        self._public_bytes = welcome.public_bytes
        lacking = self._missing_public() is not None
        refusal = self._fetch.refusal(welcome.public_bytes) if self._fetch and lacking else None
        if refusal is not None:
            self._give_up(refusal)
            return
        if self.session.phase is session.Phase.JOINING:
            self.on_news(f"taken in by the coordinator: {welcome.spec.method}, {welcome.spec.rounds} rounds")
        found = self.bench.public is not held  # on the disk, which our hello did not know
        self._feed(session.Welcomed(welcome.epoch, now_s, lacking or found))
        if found and not lacking:
            self._feed(session.Fetched(now_s))

    # -- the public set ---------------------------------------------------------------------------------------------

    def _missing_public(self) -> PublicSetSpec | None:
        """The public set that must be fetched before anything is computed; None: none."""
        taken = self._taken
        if self._fetch is None or taken is None or not taken.contract.needs_public_set:
            return None
        held = self.bench.public.spec if self.bench.public else None
        return None if held == taken.spec.public else taken.spec.public

    def _fetch_due_s(self) -> float | None:
        fetching = self.session.phase is session.Phase.FETCHING and self.session.linked
        return self._fetch.next_due_s() if fetching and self._fetch else None

    def _begin_fetching(self) -> None:
        missing = self._missing_public()
        if self._fetch is not None and missing is not None:
            if self._fetch.wanted != missing:
                self.on_news(f"fetching the public set: {missing.count} samples, {self._public_bytes} bytes")
            self._fetch.begin(missing, self._public_bytes)

    def _go_on_fetching(self, now_s: float) -> None:
        """Ask for what is missing; take the set up once nothing is."""
        fetch, missing = self._fetch, self._missing_public()
        if fetch is None or missing is None:
            return
        if not fetch.arrived:
            blocks = fetch.ask(now_s)
            if blocks:
                request = PublicRequest(
                    federation=self.federation, device=self.device, sha256=missing.sha256, blocks=blocks
                )
                self._send(request)
            return
        try:
            public = fetch.finish()
            with self.model_lock:
                self.bench.give(public)
        except RemoteProtocolError as error:
            self.refused_frames[error.kind] += 1
            log.warning("%s: %s", self.device, error)
        except Refused as refusal:
            self._give_up(refusal)
        except UsageError as error:
            self._give_up(Refused("public-set", str(error), "join with a model that takes them"))
        else:
            self.on_news("the public set is complete")
            self._rebuild()  # what an earlier life did with a set that was lost since
            self._feed(session.Fetched(now_s))

    # -- more frames in ---------------------------------------------------------------------------------------------

    def _take_assign(self, assign: Assign, frame: bytes, now_s: float) -> None:
        if self._taken is None:
            return  # the Welcome is still under way, and so is this Assign, which will be sent again
        if assign.closing != (assign.round == self._taken.spec.rounds) or assign.round > self._taken.spec.rounds:
            raise RemoteProtocolError("knowledge", f"round {assign.round} of {self._taken.spec.rounds}: out of place")
        row = self._row_of(assign)
        assign = self._taken.chain.received(assign, "common", "personal")
        expect = self._expect(self._taken.spec)
        check_roles(assign.common, {r: s for r, s in row.down.items() if not s.personal}, expect)
        check_roles(assign.personal, {r: s for r, s in row.down.items() if s.personal}, expect)
        self._newest = (assign, frame)
        self._feed(session.Assigned((assign.round, assign.exchange), assign.closing, now_s))
        self._newest = None  # what it brought, megabytes perhaps, is the method's to let go of

    def _turn_away(self, refusal: Refused) -> None:
        self.refusal = refusal
        self._feed(session.TurnedAway(str(refusal)))

    def is_last(self, exchange: int) -> bool:
        """Whether a round ends with this exchange."""
        return self._taken is not None and exchange == len(self._taken.rows) - 1

    def _row_of(self, assign: Assign) -> Exchange:
        taken = self._require_taken()
        if assign.closing:
            return taken.closing
        if assign.exchange >= len(taken.rows):
            raise RemoteProtocolError(
                "knowledge", f"exchange {assign.exchange}: this method has {len(taken.rows)} a round"
            )
        return taken.rows[assign.exchange]

    # -- commands out -----------------------------------------------------------------------------------------------

    def _feed(self, event: session.Event) -> None:
        self.session, commands = session.advance(self.session, event)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: session.Command) -> None:
        if isinstance(command, session.SayHello):
            self._unanswered += self._taken is None
            if self._unanswered == _HELLOS_BEFORE_WORD:
                self.on_news(
                    f"no coordinator of {self.federation!r} answers: is it running, and under this name? "
                    f"a broker with rules lets us speak only if it knows us as {self.device!r}"
                )
            self._send(self._hello())
        elif isinstance(command, session.FetchPublic):
            self._begin_fetching()
        elif isinstance(command, session.StartWork):
            self._start_work()
        elif isinstance(command, session.SendUpload):
            self._send_upload(command.place)
        elif isinstance(command, session.ForgetUpload):
            self.store.receipted(*command.place)
        elif self._work is not None:
            self._rebuild()  # the run ended in the midst of an exchange, which will never count

    def _start_work(self) -> None:
        if self._newest is None:
            return
        if self._work is not None:
            self._rebuild()  # the model stands somewhere inside an exchange that nobody wants any more
        assign, frame = self._newest
        start = None
        saved = self.store.started()
        if saved is None or assign.round > saved:
            start = self._round_start(assign.round)
            self.store.hold(start)
        self.begun += 1
        measured = _Measured()
        place = dataclasses.replace(assign, common={}, personal={})
        self._work = _Work(place, frame, start, measured, self._slices(assign, measured, self.serve))

    def start_over(self) -> None:
        """Begin the exchange under way anew, from where it began: what was computed of it is not to be trusted."""
        if self._work is not None:
            self._newest = self._decode_assign(self._work.frame), self._work.frame
            self._start_work()
            self._newest = None

    def _slices(self, assign: Assign, measured: _Measured, serve: Serve) -> _Slices:
        """The method at work on an exchange: see `_served`."""
        taken = self._require_taken()
        job = Job(
            spec=taken.spec,
            number=taken.welcome.number,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            samples=len(self.bench.data.train),
            class_counts=self._class_counts,
            secret=self._secret,
            learns=taken.contract.learnt_by(self.bench.model.spec.capabilities, self.bench.model.spec.terms),
        )
        return self._served(taken.method.step(self._method_state, assign.down, job), job, measured, serve)

    def _served(self, step: Step[Any], job: Job, measured: _Measured, serve: Serve) -> _Slices:
        """The method's requests, served one by one, pausing between batches."""
        if self._diverged is not None and self._diverged[0] == job.round:
            raise Diverged(self._diverged[1])
        result: Any = None
        while True:
            try:
                request = step.send(result)
            except StopIteration as stop:
                state, knowledge = stop.value
                return state, knowledge
            result = yield from serve(request, job)
            if isinstance(request, Evaluate):
                measured.rounds_done, measured.metrics = request.rounds_done, result

    def _send_upload(self, place: session.Place) -> None:
        frame = self.store.upload(*place)
        if frame is not None:
            self.transport.send(topics.up(self.federation, self.device, _KINDS[Upload]), frame)

    def _send(self, message: Hello | Bye | PublicRequest) -> None:
        topic = topics.up(self.federation, self.device, _KINDS[type(message)])
        self.transport.send(topic, codec.encode(message, self._stamp()))

    def _status(self, state: str) -> None:
        status = DeviceStatus(federation=self.federation, device=self.device, state=state, boot=self.store.boot_epoch)
        topic = topics.device_status(self.federation, self.device)
        self.transport.send(topic, codec.encode(status, self._stamp()), retain=True)

    def farewell(self, leaving: str | None = None) -> None:
        """Say that we go, and with a reason, that it is for good."""
        if self.session.linked:
            if leaving is not None:
                self._send(Bye(federation=self.federation, device=self.device, reason=leaving))
            self._status("disconnected")

    def _hello(self) -> Hello:
        spec = self.bench.model.spec
        return Hello(
            federation=self.federation,
            device=self.device,
            sdk=edge_sdk.__version__,
            capabilities=tuple(sorted(self._offered)),
            terms=tuple(sorted(spec.terms)),
            classes=spec.classes,
            feature_dim=spec.feature_dim,
            samples=len(self.bench.data.train),
            class_counts=self._disclosed if spec.classes <= MAX_DISCLOSED_CLASSES else (),
            public_sha256=self.bench.public.spec.sha256 if self.bench.public else None,
            model=spec.name,
            runtime=spec.runtime,
            note=spec.note,
            board=self.board,
            inert_terms=tuple(sorted(spec.inert_terms)),
            encodings=tuple(name for name in ENCODINGS if name != PLAIN),
            fetches_public=self._fetch is not None,
            weight_count=spec.parameters if self._shares_weights else 0,
            layout=spec.layout if self._shares_weights else None,
            batch_norm=spec.batch_norm,
        )

    @property
    def _offered(self) -> frozenset[str]:
        """What the model can do, as far as its owner lets it: weights stay here unless they may leave."""
        withheld = frozenset() if self._shares_weights else frozenset({"weights"})
        return self.bench.model.spec.capabilities - withheld

    def _stamp(self) -> Stamp:
        self._sequence += 1
        return Stamp(self.store.boot_epoch, self._sequence)

    # -- state ------------------------------------------------------------------------------------------------------

    def _enter(self, welcome: Welcome) -> None:
        """Load the method and check that both halves mean the same by it."""
        spec = welcome.spec
        try:
            method: ClientMethod[Any] = load_registered("edge_sdk.methods", spec.method)
            contract: Contract[Any] = method.contract
            params = contract.read(spec.params)
        except UsageError as error:
            raise RemoteProtocolError("knowledge", f"{error}: install or upgrade this device's SDK") from None
        if contract.digest(params) != spec.contract:
            raise RemoteProtocolError("knowledge", f"{spec.method}: the two halves differ: upgrade the older side")
        contract = contract.under(spec.params)
        if contract.shares_weights and not self._shares_weights:
            raise RemoteProtocolError("knowledge", f"{spec.method}: shares weights, and share_weights is not set here")
        rows, closing = contract.exchanges(params), contract.closing(params)
        limits = frame_limits((*rows, closing), self._expect(spec))
        self._taken = _Taken(welcome, method, contract, rows, closing, limits, transforms.chain(spec))
        self.transport.accept_up_to(limits.frame_bytes)
        self._method_state = method.init(spec)
        missing = self._missing_public()
        found = self._fetch.find(missing) if self._fetch and missing else None
        if found is not None:
            self.bench.give(found)

    def _expect(self, spec: FederationSpec) -> Expect:
        """What payloads must fit: weights, those of this device's own model."""
        own = self.bench.model.spec
        count = own.parameters if own.layout else 0
        return expected_weights(expectation(spec), count=count, feature_dim=own.feature_dim, layout=own.layout)

    def _begin_anew(self, welcome: Welcome, frame: bytes) -> None:
        """Another run of the same federation: from round 0, with what the model has learned so far."""
        with self.model_lock:
            self._work = None
            if self._fetch is not None:
                self._fetch.stop()
            self._enter(welcome)
            self.store.save_welcome(frame)
            self.store.save_start(self._round_start(0))
        self.session = session.SessionState(linked=self.session.linked, epoch=welcome.epoch)

    def _require_taken(self) -> _Taken:
        if self._taken is None:
            raise UsageError("not part of a federation yet")
        return self._taken

    def _round_start(self, round_: int) -> RoundStart:
        return RoundStart(round_, self.bench.model.state_bytes(), keep.to_bytes(self._method_state))

    def _restore(self) -> None:
        """After a restart: stand where the last durable exchange left us."""
        frame = self.store.welcome()
        if frame is None:
            return
        welcome = codec.decode(frame).message
        if isinstance(welcome, Welcome):
            self._enter(welcome)
            self.session = session.SessionState(epoch=welcome.epoch)
            if self.store.started() is None:  # the power went before it was saved
                self.store.save_start(self._round_start(0))
        self._rebuild()
        self._stand(session.Phase.JOINING)

    def _stand(self, phase: session.Phase) -> None:
        """Put the session where the last durable exchange left us."""
        fresh = session.SessionState()
        place, closing, pending = fresh.place, fresh.closing, fresh.pending
        for last in self.store.done()[-1:]:
            place, pending = (last.round, last.exchange), not last.receipted
            closing = self._decode_assign(last.assign).closing
        self.session = dataclasses.replace(
            self.session, phase=phase, place=place, closing=closing, pending=pending, unfinished=False
        )

    def _rebuild(self) -> None:
        """Replay the round from its saved start; exact, because nothing in it is random but by seed."""
        with self.model_lock:
            self._replay()

    def _replay(self) -> None:
        self._work = self._diverged = None
        start = self.store.start()
        if start is None:
            return
        self._reload(start)
        since = tuple(done for done in self.store.done() if done.round >= start.round)
        dones = since if self._missing_public() is None else ()  # else when it has been fetched
        withheld = self._withheld_in(dones[-1]) if dones else ""
        if withheld:  # and so the whole round was undone
            self._diverged = dones[-1].round, withheld
            return
        for done in dones:
            slices = self._slices(self._decode_assign(done.assign), _Measured(), self.bench.serve)
            self._method_state, _ = _to_the_end(slices)

    def _reload(self, start: RoundStart) -> None:
        """Stand where a round began."""
        taken = self._require_taken()
        with self.model_lock:
            self.bench.model.load_state(start.model)
            self._method_state = keep.from_bytes(type(taken.method.init(taken.spec)), start.method)

    def _withheld_in(self, done: Done) -> str:
        message: Message = codec.decode(done.upload, self._require_taken().limits).message
        return message.withheld if isinstance(message, Upload) else ""

    def _decode_assign(self, frame: bytes) -> Assign:
        message: Message = codec.decode(frame, self._require_taken().limits).message
        if not isinstance(message, Assign):
            raise RemoteProtocolError("schema", "the stored frame is no Assign")
        return self._require_taken().chain.received(message, "common", "personal")


def _to_the_end(slices: _Slices) -> tuple[Any, Mapping[str, Payload]]:
    """Run without looking for news; what the generator returns."""

    def outer() -> Generator[None, None, None]:
        result.append((yield from slices))

    result: list[tuple[Any, Mapping[str, Payload]]] = []
    for _ in outer():
        pass
    return result[0]
