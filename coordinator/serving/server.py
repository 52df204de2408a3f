"""The coordinator's loop: takes in frames, and carries out the commands of the rounds.

`run` is the loop of a deployment; a simulator drives the same object through `handle`, `flush` and `tick`.

checks.py checks frames and uploads; membership.py handles devices that join and leave; rounds/machine.py has the rules
of a round, and rounds/queue.py orders its commands; aggregation.py adds up uploads; sender.py sends messages;
restart.py computes the state at a start.

A command that the disk refuses can be carried out again: each command writes to the disk first, and counts after that.
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
"""The longest sleep of the loop, in seconds."""
GROUP = 256
"""The most frames that share one commit."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """An upload and its frame: the object that the rounds pass on from Received to Fold."""

    upload: Upload
    incoming: Incoming


class Server:
    """The coordinator of one federation."""

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
        """begun_s: when a resumed run opened its first exchange, in seconds of this clock; None: not known."""
        self.spec, self.transport, self.ledger = spec, transport, ledger
        self.roster = tuple(sorted(roster))
        self.observer: RunObserver = observer or RunObserver()
        self._public_server = public_server
        """Serves the public set to devices that lack it; None: they must bring it."""
        self._clock, self._work = clock, work
        self._limits = checks.limits(spec, method)
        self.transport.accept_up_to(self._limits.frame_bytes)
        self._chain = transforms.chain(spec)
        self._demands = UploadChecks(spec, method)
        self._warnings = RunWarnings(method, spec, policy)
        self._norms = UpdateNorms()
        self._registry = DeviceRegistry(spec, method, self.roster, serving=public_server is not None)
        self.hellos: Mapping[str, Hello] = self._registry.hellos
        """The Hello of each device that takes part."""
        self.numbers: Mapping[str, int] = self._registry.numbers
        """The number of each device that takes part, or that is still fetching the public set."""
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
        """Uploads that share the next commit."""

    # -- the loop of a deployment -----------------------------------------------------------------------------------

    def run(self, check: Callable[[], str] = lambda: "", connect_within_s: float = math.inf) -> None:
        """Serve until the run is over; the ledger is kept, so that a later start can resume.

        `check` is called in each turn of the loop, and ends the run if it returns a reason.  Raises TransportError if
        there is no link to the broker within `connect_within_s`; a broker that is lost later is waited for without
        limit.
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
        """Disconnect from the broker and close the ledger."""
        self.transport.close()
        self.ledger.close()
        if self._public_server is not None:
            self._public_server.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the method's parameters, the devices and the course of this run."""
        return self._warnings.all(self.hellos, self.record)

    @property
    def method(self) -> Method[Any]:
        """The federation's method, with its parameters set."""
        return self.reduction.method

    @property
    def method_state(self) -> Any:
        """The state of the method after all uploads so far."""
        return self.reduction.state

    @property
    def rounds(self) -> RoundState:
        """The state of the run."""
        return self._queue.state

    @property
    def over(self) -> bool:
        """Whether the run is done or failed, and nothing is left to carry out."""
        return self._queue.over

    # -- driven from outside ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the link."""
        self._sender.connect()

    def next_due_s(self) -> float | None:
        """The time in s at which `tick` can next change something; None: only another event can."""
        return self._queue.next_due_s()

    def tick(self, now_s: float) -> None:
        """Do what is due at this time."""
        self._queue.tick(now_s)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Handle an event of the transport.  An illegal frame is counted for its sender, and changes nothing else.

        While the round waits for the disk, frames are dropped: their senders get no answer, and send them again.
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
        """Make the waiting uploads durable with one sync, and then count them one after the other.

        If the disk refuses, the uploads are not answered, and the devices, which keep them, send them again.  They are
        acknowledged to the broker all the same, because it stops delivering after a few unacknowledged messages.
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
        """Check an upload against what the exchange asks for; then the rounds decide whether it counts."""
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
        """Handle the report of a device that withholds its upload because its training diverged."""
        if upload.knowledge or upload.closing:
            self._answer(SendReceipt(upload.device, place, "refused", "withheld, and yet something to take"))
            raise RemoteProtocolError("knowledge", f"withheld {upload.withheld!r}, and yet something to take")
        self._queue.feed(Withheld(upload.device, place, upload.withheld), now_s=now_s)

    def _note(self, message: str) -> None:
        self.observer.noted(message)

    # -- commands out -----------------------------------------------------------------------------------------------

    def _carry_out(self, command: RoundCommand, now_s: float) -> RoundEvent | None:
        """Carry out a command; returns the event that follows, if any.  Raises StoreError if the disk refuses."""
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
        at = invite.place
        try:
            shared = self.reduction.common(at)
            self._norms.begin(shared)
            common = self._sender.packed_common(self._chain.apply(shared), at, anybody=invite.devices[0])
            for device in invite.devices:
                personal = self.reduction.personal(at, self.numbers[device])
                self.record.travelled("down", {**shared, **personal})
                if not self._sender.repeat(device, at):
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
            verdict, reason = "accepted", ""  # so that the device does not send it again
        elif verdict != "accepted":
            self.record.refused_frame(device, word)
        self._sender.receipt(device, place, verdict, reason)

    def _reduce(self, reduce: Reduce, now_s: float) -> Finished | Broken:
        self.record.waiting.closed(self.rounds.missing, now_s)  # only once: a disk wait counts for no device
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
        if len(self.record.rounds) == round_:  # otherwise the disk refused the checkpoint, and this is another try
            for warning in self._warnings.round_ended(self.record, self.method_state):
                self.observer.noted(warning)
            self.record.round_done(self._aggregation.contributors, self.rounds.policy.exchanges, now_s, self._work())
        self.record.asked, self.record.answered = self.rounds.asked, self.rounds.answered
        self.ledger.checkpoint(round_ + 1, storage.serialise(self.method_state), self.record.to_json(), slots)
        self.observer.round_done(self.record.rounds[-1], self.spec.rounds, self.record)

    def _announce(self) -> None:
        """Announce the state of the run to devices that connect now or later."""
        state = ("failed" if self.rounds.reason else "finished") if self.over else "ready"
        self._sender.announce(state, self.rounds.reason if self.over else "")

    def _remind(self) -> None:
        """Announce the end again if the run is over, since a device that joins after it does not know."""
        if self.over:
            self._announce()

    def _patience_s(self) -> float:
        due_s = self.next_due_s()
        return POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self._clock()))
