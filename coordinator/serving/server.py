"""The coordinator's loop: frames in, commands out.

`run` is the loop of a deployment; a simulator drives the same object through `handle`, `flush` and `tick`.

checks.py checks frames and uploads; membership.py handles devices that come and go; rounds/machine.py says what a round
is, and rounds/queue.py in which order its commands are carried out; aggregation.py adds uploads up; sender.py sends;
restart.py finds where a start begins.

Every command can be carried out again where the disk refused: what the disk may refuse comes first, and what is counted
comes after it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from coordinator.ledger import Ledger, Row
from coordinator.record import remarks
from coordinator.record.observer import RunObserver
from coordinator.record.run_record import NO_WORK, FleetWork
from coordinator.rounds import (
    Broken,
    Finished,
    Fold,
    Invite,
    Persist,
    Persisted,
    Policy,
    Received,
    Reduce,
    RoundCommand,
    RoundDone,
    RoundEvent,
    RoundState,
    SendReceipt,
    Withheld,
)
from coordinator.rounds.queue import RoundQueue
from coordinator.serving import admission, checks, restart
from coordinator.serving.checks import UploadChecks
from coordinator.serving.device_registry import DeviceRegistry
from coordinator.serving.membership import MembershipHandler
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.reduction import Reduction
from coordinator.serving.run_warnings import RunWarnings
from coordinator.serving.sender import Sender
from coordinator.serving.update_norms import UpdateNorms
from edge_sdk.errors import EdgeError, LocalProtocolError, RemoteProtocolError, StoreError, TransportError
from edge_sdk.methods.base import Method
from edge_sdk.protocol import storage, topics, transforms
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, Transport, TransportEvent

log = logging.getLogger(__name__)

POLL_S = 0.5
"""Longest sleep of the loop."""
GROUP = 256
"""Most frames that share one commit."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """An upload and the frame that it came in: what the rounds hand on from Received to Fold."""

    upload: Upload
    incoming: Incoming


class Server:
    """One federation's coordinator."""

    def __init__(
        self,
        *,
        spec: FederationSpec,
        policy: Policy,
        method: Method[Any],
        transport: Transport,
        ledger: Ledger,
        roster: tuple[str, ...] = (),
        observer: RunObserver | None = None,
        public_server: PublicSetServer | None = None,
        work: Callable[[], FleetWork] = lambda: NO_WORK,
        clock: Callable[[], float] = time.monotonic,
        begun_s: float | None = None,
    ) -> None:
        """begun_s: on this clock, when a run that goes on opened its first exchange; None: nobody knows."""
        self.spec, self.transport, self.ledger = spec, transport, ledger
        self.roster = tuple(sorted(roster))
        self.observer: RunObserver = observer or RunObserver()
        self._public_server = public_server
        """The public set, for devices that lack it; None: they must bring it."""
        self._clock, self._work = clock, work
        self._limits = checks.limits(spec, method)
        self.transport.accept_up_to(self._limits.frame_bytes)
        self._chain = transforms.chain(spec)
        self._demands = UploadChecks(spec, method)
        self._warnings = RunWarnings(method, spec, policy)
        self._norms = UpdateNorms()
        self._registry = DeviceRegistry(spec, method, self.roster, serving=public_server is not None)
        self.hellos: Mapping[str, Hello] = self._registry.hellos
        """Of those who take part."""
        self.numbers: Mapping[str, int] = self._registry.numbers
        """Of them, and of those who fetch the public set first."""
        self.reduction = Reduction(spec, method, ledger, self._limits, self._chain)
        self._aggregation, standing = restart.standing(spec, policy, ledger, self._registry, self.reduction)
        self._queue = RoundQueue(standing, self._carry_out, self._note)
        self.record = self._aggregation.record
        self.record.started_s = begun_s
        self._sender = Sender(spec, transport, epoch=lambda: ledger.epoch, sent=self.record.sent)
        self._membership = MembershipHandler(
            registry=self._registry,
            ledger=ledger,
            record=self.record,
            sender=self._sender,
            public_server=public_server,
            warnings=self._warnings,
            expected=policy.expected,
            welcomed=self._remind,
        )
        self._linked, self._link_fault = False, "it does not answer"
        self._unwritten: list[Persist] = []
        """They share the next commit."""

    # -- the loop of a deployment -----------------------------------------------------------------------------------

    def run(self, check: Callable[[], str] = lambda: "", connect_within_s: float = math.inf) -> None:
        """Serve until the run is over; the ledger is left as it is, so that a later start goes on.

        `check` is called now and then, and ends the run by giving a reason.  Raises TransportError where the broker
        does not appear within `connect_within_s`; once it has, a lost broker is waited for without limit.
        """
        self.connect()
        give_up_s = self._clock() + connect_within_s
        try:
            while not self.over:
                event = self.transport.poll(self._patience_s())
                for _ in range(GROUP):
                    if event is None:
                        break
                    self.handle(event, self._clock())
                    event = self.transport.poll(0.0)
                if event is not None:
                    self.handle(event, self._clock())
                self.flush(self._clock())
                self.tick(self._clock())
                reason = check()
                if reason:
                    self._queue.give_up(reason, self._clock())
                if not self._linked and self._clock() > give_up_s:
                    raise TransportError(f"no broker after {connect_within_s:g} s: {self._link_fault}")
        finally:
            self.close()

    def close(self) -> None:
        """Leave the broker and release the ledger."""
        self.transport.close()
        self.ledger.close()
        if self._public_server is not None:
            self._public_server.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the method's users should know: of its parameters, and of how this run went."""
        return self._warnings.all(self.hellos, self.record)

    @property
    def method(self) -> Method[Any]:
        """The federation's, under its parameters."""
        return self.reduction.method

    @property
    def method_state(self) -> Any:
        """What the method has made of all uploads so far."""
        return self.reduction.state

    @property
    def rounds(self) -> RoundState:
        """Where the run stands."""
        return self._queue.state

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._queue.over

    # -- driven from outside ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the link."""
        self._sender.connect()

    def next_due_s(self) -> float | None:
        """When `tick` can next matter."""
        return self._queue.next_due_s()

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        self._queue.tick(now_s)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Take in what the transport brought.  An illegal frame is counted, attributed, and changes nothing.

        While the round waits for the disk no frame is taken in: its sender, without an answer, sends it again.
        """
        if isinstance(event, Connected):
            self._linked = True
            self._announce()
        elif isinstance(event, Disconnected):
            self._link_fault = event.reason
            self.observer.noted(f"broker: {event.reason}")
            if event.final:
                self._queue.give_up(f"broker: {event.reason}", now_s)
        elif isinstance(event, Rejected):
            self._refuse_frame(topics.sender(event.topic) or "unknown", event.kind, event.reason)
        elif self._queue.held:
            event.acknowledge()
        else:
            sender = topics.sender(event.topic) or "unknown"
            try:
                self._take(event, sender, now_s)
            except RemoteProtocolError as error:
                self._refuse_frame(sender, error.kind, str(error))
                event.acknowledge()
            except StoreError as error:
                self.observer.noted(str(error))
                event.acknowledge()

    def _refuse_frame(self, sender: str, kind: str, reason: str) -> None:
        self.record.refused_frame(sender if self._registry.known(sender) else "unknown", kind)
        log.warning("refused a frame of %s: %s", sender, reason)

    def flush(self, now_s: float) -> None:
        """Make the uploads that wait durable with one sync, then let them count, one after the other.

        Where the disk will not have them, they are not answered, and devices, which keep them, send them again.  The
        broker is freed of them all the same: it stops delivering after a few that nobody acknowledged.
        """
        if not self._unwritten:
            return
        group, self._unwritten = self._unwritten, []
        arrived = [cast("Arrived", each.upload) for each in group]
        durable: list[RoundEvent] = []
        try:
            frames = [each.incoming.frame for each in arrived]
            self.ledger.commit(Row(p.place, p.device, frame) for p, frame in zip(group, frames, strict=True))
            durable += [Persisted(each.device, each.place, each.upload, now_s) for each in group]
        except StoreError as error:
            self.observer.noted(str(error))
        for each in arrived:
            each.incoming.acknowledge()
        self._queue.feed(*durable, now_s=now_s)

    # -- frames in --------------------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, sender: str, now_s: float) -> None:
        envelope = checks.opened(incoming.frame, sender, self.spec.federation, self._limits)
        if isinstance(envelope.message, Upload):
            self._take_upload(envelope.message, incoming, now_s)
            return
        event = self._membership.take(envelope, incoming.frame, now_s, self.observer)
        if event is not None:
            self._queue.feed(event, now_s=now_s)
        incoming.acknowledge()

    def _take_upload(self, upload: Upload, incoming: Incoming, now_s: float) -> None:
        """Check it against the contract; then the rounds decide whether it counts."""
        place = ExchangeId(upload.round, upload.exchange)
        hello = self.hellos.get(upload.device)
        if hello is None:
            raise RemoteProtocolError("knowledge", f"{upload.device} has not joined")
        self.record.bytes_up[upload.device] += len(incoming.frame)
        if self.ledger.has(place, upload.device):
            self._answer(SendReceipt(upload.device, place, "duplicate", ""))
            incoming.acknowledge()
            return
        if upload.withheld:
            self._take_withheld(upload, place, now_s)
            incoming.acknowledge()
            return
        if place == self.rounds.place:
            try:
                upload = self.reduction.undone(upload)
                self._demands.check(upload, hello, place, closing=self.rounds.closing)
            except RemoteProtocolError as error:
                self._answer(SendReceipt(upload.device, place, "refused", one_line(str(error))))
                raise
        arrived = Arrived(upload, incoming)
        self._queue.feed(Received(upload.device, place, arrived), now_s=now_s)
        if not any(each.upload is arrived for each in self._unwritten[-1:]):
            incoming.acknowledge()

    def _take_withheld(self, upload: Upload, place: ExchangeId, now_s: float) -> None:
        """A device whose learning diverged says so: nothing of it counts, and nobody waits for it."""
        if upload.knowledge or upload.closing:
            self._answer(SendReceipt(upload.device, place, "refused", "withheld, and yet something to take"))
            raise RemoteProtocolError("knowledge", f"withheld {upload.withheld!r}, and yet something to take")
        self._queue.feed(Withheld(upload.device, place, upload.withheld), now_s=now_s)

    def _note(self, message: str) -> None:
        self.observer.noted(message)

    # -- commands out -----------------------------------------------------------------------------------------------

    def _carry_out(self, command: RoundCommand, now_s: float) -> RoundEvent | None:
        """Do what the rounds say; what then happens, None: nothing.  Raises StoreError where the disk refuses."""
        if isinstance(command, Invite):
            return self._invite(command, now_s)
        if isinstance(command, Reduce):
            return self._reduce(command, now_s)
        if isinstance(command, Persist):
            self._unwritten.append(command)
        elif isinstance(command, Fold):
            self._fold(command, now_s)
        elif isinstance(command, SendReceipt):
            self._answer(command)
        elif isinstance(command, RoundDone):
            self._round_done(command.round, now_s)
        else:
            self._sender.announce("failed" if command.reason else "finished", command.reason)
        return None

    def _invite(self, invite: Invite, now_s: float) -> Broken | None:
        if not self._registry.anybody_learns(self.rounds.members):
            return Broken(admission.nobody_learns(self.rounds.members, self.method))
        self.record.begun(now_s)
        at = ExchangeId(invite.place.round, invite.place.exchange)
        try:
            shared = self.reduction.common(at)
            self._norms.begin(shared)
            common = self._sender.packed_common(self._chain.apply(shared), at, anybody=invite.devices[0])
            for device in invite.devices:
                if not self._sender.repeat(device, at):
                    personal = self.reduction.personal(at, self.numbers[device])
                    self.record.travelled("down", {**shared, **personal})
                    self._sender.assign(device, at, common, self._chain.apply(personal), invite.left_s)
        except LocalProtocolError as error:
            return Broken(f"round {at.round}: nothing legal to send: {error}")
        return None

    def _fold(self, fold: Fold, now_s: float) -> None:
        upload = cast("Arrived", fold.upload).upload
        self._aggregation.add(upload)
        self._norms.add(fold.device, upload.knowledge)
        self._answer(SendReceipt(fold.device, fold.place, "accepted", ""))
        self.record.waiting.answered(fold.device, now_s)

    def _answer(self, answer: SendReceipt) -> None:
        """Count the verdict, and send the receipt."""
        device, place, verdict, reason = answer.device, answer.place, answer.verdict, answer.reason
        word = "stale" if verdict == "late" else verdict
        self.record.updates[word] += 1
        if verdict == "withheld":
            self.observer.noted(f"{device} withheld its upload of round {place.round + 1}: {reason}")
            self.record.diverged(device, reason)
            verdict, reason = "accepted", ""  # it has nothing to send again
        elif verdict != "accepted":
            self.record.refused_frame(device, word)
        self._sender.receipt(device, place, verdict, reason)

    def _reduce(self, reduce: Reduce, now_s: float) -> Finished | Broken:
        self.record.waiting.closed(self.rounds.missing, now_s)  # once: the wait for the disk is nobody's
        try:
            self.ledger.close_exchange(reduce.place, reduce.contributors, now=reduce.partial)
            self._aggregation.close(reduce.place, reduce.contributors)
        except StoreError:
            raise
        except EdgeError as error:
            return Broken(str(error))
        self._look_for_outliers(reduce.place)
        return Finished(now_s)

    def _look_for_outliers(self, place: ExchangeId) -> None:
        """Name the devices whose update was far larger than the others' (W17)."""
        for device, times in self._norms.close().items():
            self.record.outlier(device, times)
            self.observer.noted(remarks.far_larger(place.round, device, times))

    def _round_done(self, round_: int, now_s: float) -> None:
        slots = self.reduction.slots_after(round_)
        if len(self.record.rounds) == round_:  # else the disk refused the checkpoint, and this is another try
            for warning in self._warnings.round_ended(self.record):
                self.observer.noted(warning)
            self.record.round_done(self._aggregation.contributors, self.rounds.policy.exchanges, now_s, self._work())
        self.record.asked, self.record.answered = self.rounds.asked, self.rounds.answered
        self.ledger.checkpoint(round_ + 1, storage.serialise(self.method_state), self.record.to_json(), slots)
        self.observer.round_done(self.record.rounds[-1], self.spec.rounds, self.record)

    def _announce(self) -> None:
        """Where the run stands, for those who come."""
        state = ("failed" if self.rounds.reason else "finished") if self.over else "ready"
        self._sender.announce(state, self.rounds.reason if self.over else "")

    def _remind(self) -> None:
        """Whoever comes after the end does not know of it yet."""
        if self.over:
            self._announce()

    def _patience_s(self) -> float:
        due_s = self.next_due_s()
        return POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self._clock()))
