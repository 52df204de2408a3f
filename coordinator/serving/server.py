"""The coordinator's loop: takes in frames, and turns them into events of the rounds.

`run` is the loop of a deployment; a simulator drives the same object through `handle`, `flush` and `tick`.

frame_intake.py checks frames and uploads; membership.py handles devices that join and leave; operator_desk.py answers
operators; rounds/machine.py has the rules of a round, and rounds/queue.py orders its commands; command_handler.py
carries them out; aggregation.py adds up the uploads, and reduction.py calls the method; round_pacing.py delays rounds;
sender.py sends messages; restart.py computes the state at a start.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from coordinator.ledger import Ledger, Row
from coordinator.record import remarks
from coordinator.record.observer import RunObserver
from coordinator.record.run_record import NO_WORK, FleetWork, device_joules
from coordinator.rounds import (
    Declined,
    Joined,
    Left,
    Lost,
    Persist,
    Persisted,
    Received,
    RoundEvent,
    RoundPhase,
    RoundPolicy,
    RoundState,
    Withheld,
    buffered,
)
from coordinator.rounds.queue import DISK_AGAIN_S, RoundQueue
from coordinator.serving import restart
from coordinator.serving.command_handler import Arrived, CommandHandler
from coordinator.serving.devices import admission
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake import frame_intake
from coordinator.serving.intake.canary import Canary
from coordinator.serving.intake.frame_intake import FrameScreen, Intake, UploadChecks, booked_to
from coordinator.serving.intake.shares import DeviceShares
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.membership import MembershipHandler
from coordinator.serving.operators.device_report import DeviceReport, ServerView
from coordinator.serving.operators.operator_desk import OperatorDesk
from coordinator.serving.operators.orders import Orders
from coordinator.serving.operators.rollout import RolloutDesk
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.reduction import Reduction
from coordinator.serving.round_pacing import AT_ONCE, RoundPacing, Timetable
from coordinator.serving.run_context import RunContext, RunWarnings
from coordinator.serving.sender import Sender
from edge_sdk.errors import RemoteProtocolError, StoreError, TransportError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol import topics
from edge_sdk.protocol.entry_guard import is_told, legible
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec, Hello, PublicBlock, PublicRequest, Upload
from edge_sdk.protocol.operator_messages import Control, Inquiry, LogLines
from edge_sdk.protocol.topics import CONTROL, Origin
from edge_sdk.reductions import Combining
from edge_sdk.reductions.influence import PAPER, UNITS, RobustTable
from edge_sdk.terminal import LineBudget
from edge_sdk.transport.base import (
    Connected,
    Disconnected,
    Incoming,
    LinkNotice,
    Rejected,
    SendRefused,
    Transport,
    TransportEvent,
)

log = logging.getLogger(__name__)

SAID = frozenset({"busy", "rate"})
"""Refusals reported to operators: a sender floods, or takes the room of others."""
UNBOUND_HELLOS = 4
"""Hellos of one device without the run's id after which the hint at a backup is logged: the Welcome names the run."""
POLL_S = 0.5
"""Maximum sleep of the loop in seconds."""
LINK_TOLD_S = 60.0
"""Minimum seconds between two equal lines about the broker: a bad link drops every few moments."""
REFUSAL_TOLD_S = 60.0
"""Minimum seconds between two lines about a disk that refuses uploads."""
GROUP = 256
"""Maximum number of frames that share one commit."""


class Server:
    """The coordinator of one federation."""

    def __init__(
        self,
        *,
        spec: FederationSpec,
        policy: RoundPolicy,
        method: Method[Any],
        transport: Transport,
        ledger: Ledger,
        roster: tuple[str, ...] = (),
        observer: RunObserver | None = None,
        public_server: PublicSetServer | None = None,
        security: LabSecurity | None = None,
        work: Callable[[], FleetWork] = lambda: NO_WORK,
        clock: Callable[[], float] = time.monotonic,
        begun_s: float | None = None,
        robust: RobustTable = PAPER,
        timetable: Timetable = AT_ONCE,
        canary: Canary | None = None,
        models: Path | None = None,
    ) -> None:
        """begun_s: when a resumed run opened its first exchange, in seconds of this clock, or None if unknown.

        security: the keys of the lab, or None to leave frames unsigned.  robust: limits on one device's influence.
        timetable: when rounds open.  canary: tries the result of a round before devices get it.  models: the
        folder of model files that operators roll out, or None if they roll out none.
        """
        self.spec, self.transport, self.ledger, self.robust = spec, transport, ledger, robust
        self.roster = tuple(sorted(roster))
        self._public_server = public_server
        """Serves the public set to devices that lack it, or None if they must bring it."""
        self._clock = clock
        self._limits = frame_intake.limits(spec, method)
        carried = security.carried(self._limits) if security else self._limits
        self.transport.accept_up_to(carried.frame_bytes)
        self._demands = UploadChecks(spec, method)
        self._registry = DeviceRegistry(
            spec,
            method,
            self.roster,
            serving=public_server is not None,
            run=(lambda: ledger.run) if security else None,
        )
        self._security, self._hinted = security, False
        self._unbound: Counter[str] = Counter()
        """Number of Hellos without this run's id by enrolled device: a device that refuses the Welcome sends many."""
        self._intake = Intake(spec.federation, self._limits, self._registry.known, security)
        self.hellos: Mapping[str, Hello] = self._registry.hellos
        """The Hello of each device that takes part."""
        self.numbers: Mapping[str, int] = self._registry.numbers
        """The number of each device that takes part, or that is still fetching the public set."""
        self.reduction = Reduction(spec, method, ledger, self._limits)
        self.reduction.method.combining = Combining.under(robust, UNITS if policy.buffer else 1)
        self._orders = Orders(ledger)
        aggregation, standing, news = restart.standing(
            spec,
            policy,
            ledger,
            self._registry,
            self.reduction,
            orders=self._orders,
            robust=robust,
            canary=canary,
            revoked=security.revoked if security else frozenset(),
        )
        self.record = aggregation.record
        self.record.started_s = begun_s
        self._context = RunContext(
            spec=spec,
            policy=policy,
            ledger=ledger,
            registry=self._registry,
            record=self.record,
            orders=self._orders,
            warnings=RunWarnings(method, spec, policy),
            observer=observer or RunObserver(),
            security=security,
            run=ledger.run if security else ledger.unique_run,
            pacing=RoundPacing(timetable, policy, self.record, lambda: device_joules(self.record, work())),
        )
        self._shares = DeviceShares(carried.frame_bytes, policy.expected)
        self._screen = FrameScreen(
            federation=spec.federation,
            frame_bytes=carried.frame_bytes,
            shares=self._shares,
            known=self._registry.known,
            due=lambda device: device in self.rounds.missing or device in self.rounds.work,
        )
        self._sender = Sender(self._context, self.transport, self._shares.earned)
        self._commands = CommandHandler(
            self._context,
            reduction=self.reduction,
            aggregation=aggregation,
            sender=self._sender,
            work=work,
        )
        self._context.queue = self._queue = RoundQueue(standing, self._commands.carry_out, self._context.note)
        self._report = DeviceReport(self._context, self.roster)
        self._membership = MembershipHandler(self._context, self._sender, self._report, public_server)
        self._rollouts = RolloutDesk(self._context, self._sender, method, models)
        self._desk = OperatorDesk(self._context, self._report, self._sender, self._rollouts)
        self._strangers, self._disk_faults = LineBudget(), LineBudget(first=1)
        self._refusal_told_s = -math.inf
        self._linked, self._link_fault = False, "it does not answer"
        self._link_told, self._link_told_s = "", -math.inf
        self.transport.screen_with(self._screen)
        if news:
            self._context.note(news)
        self.observer.begun(ServerView(self.record, clock, self._report, self._operate))

    # -- the loop of a deployment -----------------------------------------------------------------------------------

    def run(self, check: Callable[[], str] = lambda: "", connect_within_s: float = math.inf) -> None:
        """Serve until the run is over; the ledger is kept, so that a later start can resume.

        `check` is called in each turn of the loop, and a reason that it returns ends the run.  Raises TransportError if
        there is no link to the broker within `connect_within_s`; later it waits for a lost broker without limit.
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
                self.observer.waited(self.record)
                self.look_for_revoked(self._clock())
                reason = check()
                if reason:
                    self._queue.give_up(reason, self._clock())
                if not self._linked and self._clock() > give_up_s:
                    raise TransportError(f"no broker after {connect_within_s:g} s: {self._link_fault}")
            self._note_stop()
        finally:
            for rejected in self._screen.refused(math.inf):
                self.handle(rejected, self._clock())
            if not self.over:  # an orderly disconnect suppresses the last will
                self._sender.announce("lost", "the coordinator was stopped; the run can be resumed")
            self.close()

    def _note_stop(self) -> None:
        """Note that an operator's order to stop the run is carried out, so that a restart resumes the run."""
        if self.drained:
            self._orders.stop(wanted=False)
            self._sender.announce_run()

    def close(self) -> None:
        """Disconnect from the broker and close the ledger."""
        self.transport.close()
        self.ledger.close()
        self._rollouts.close()
        if self._public_server is not None:
            self._public_server.close()

    @property
    def observer(self) -> RunObserver:
        """Receives all events of the run; may be replaced at any time."""
        return self._context.observer

    @observer.setter
    def observer(self, observer: RunObserver) -> None:
        self._context.observer = observer

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the method's parameters, the devices and the course of this run."""
        return self._context.warnings.all(self.hellos, self.record)

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
        """Whether the run is done, failed or drained, and nothing is left to carry out."""
        return self._queue.over

    @property
    def drained(self) -> bool:
        """Whether an operator stopped the run; a restart resumes it."""
        return self.over and self.rounds.phase is RoundPhase.DRAINED

    # -- driven from outside ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the link."""
        self._sender.connect()

    def next_due_s(self) -> float | None:
        """The time in s at which `tick` can next change something, or None if only another event can."""
        return self._queue.next_due_s()

    def tick(self, now_s: float) -> None:
        """Do what is due at this time."""
        self._write_refused(now_s)
        self._queue.tick(now_s)
        self._rollouts.tick(now_s)
        if self._security is not None and self.rounds.misses:
            self._hint_at_backup()

    def _hint_at_backup(self) -> None:
        """Hint once at a restored backup if no device answers after a restart."""
        if not self._hinted and self.ledger.epoch > 1:
            self._hinted = True
            self._context.note(
                "no device has answered this start: if the lab's folder came back from a backup, devices refuse this "
                "coordinator's frames, and report this to their owners: run edge-sdk lab restored DIR, and start again"
            )

    def look_for_revoked(self, now_s: float) -> None:
        """Take out the devices that the lab has revoked since the last look."""
        if self._security is None or self._queue.held:
            return
        before = self._security.revoked
        if self._security.look(now_s):
            for device in sorted((self._security.revoked - before) & self.numbers.keys()):
                self._report.parted(device)
                self._queue.feed(self._membership.revoke(device, now_s), now_s=now_s)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Handle an event of the transport.  Illegal frames are counted for their sender and otherwise ignored.

        While the round waits for the disk, frames of devices are dropped: without an answer, devices send them again.
        """
        if isinstance(event, Connected):
            self._linked = True
            self._queue.link_restored(now_s)
            self._sender.announce_run()
        elif isinstance(event, Disconnected):
            self._link_fault = event.reason
            line = self._note_link_lost(event, now_s)
            self._queue.link_lost(now_s)
            if event.final:
                self._queue.give_up(line, now_s)
        elif isinstance(event, SendRefused):
            self.observer.noted(f"the broker refuses the coordinator's messages on {event.topic}: {event.reason}")
        elif isinstance(event, LinkNotice):
            self._context.note(event.text)
        elif isinstance(event, Rejected):
            self._refuse_frame(booked_to(topics.origin(event.topic)), event.kind, event.reason, now_s, event.count)
        else:
            self._handle_frame(event, topics.origin(event.topic), now_s)

    def _handle_frame(self, incoming: Incoming, origin: Origin, now_s: float) -> None:
        """Take in a frame; origin: what its topic names."""
        ours = origin.federation == self.spec.federation
        if self._queue.held and not (ours and origin.kind == CONTROL):
            incoming.acknowledge()
            return
        try:
            self._take(incoming, origin, now_s)
        except RemoteProtocolError as error:
            booked = booked_to(origin) if error.kind == "stranger" else self._intake.sender
            self._refuse_frame(booked, error.kind, str(error), now_s)
            if ours and origin.kind == "hello":
                self._answer_unopened(origin.device, error, now_s)
            incoming.acknowledge()
        except StoreError as error:
            if told := self._disk_faults.line(str(error), now_s):
                self.observer.noted(told)
            incoming.acknowledge()

    def _note_link_lost(self, event: Disconnected, now_s: float) -> str:
        """Log why the link is down, unless that was just logged; returns the line."""
        line = f"broker: {event.reason}"
        if event.taken_over:
            name = self.spec.federation
            line += f"; is another coordinator of {name!r} running? stop it, or give its federation another name"
        if line != self._link_told or now_s >= self._link_told_s + LINK_TOLD_S:
            self._link_told, self._link_told_s = line, now_s
            self.observer.noted(line)
        return line

    def _answer_unopened(self, sender: str, error: RemoteProtocolError, now_s: float) -> None:
        """Answer an unreadable Hello with the reason; devices that sign ignore this answer, as it names no instance."""
        if error.kind == "version":
            self._membership.unreadable(sender, str(error), now_s)
        elif error.kind == "signature" and self._security is not None:
            known = sender in self._security.revoked
            self._sender.refuse(sender, admission.revoked(sender) if known else admission.unsigned(sender))
        elif error.kind == "encryption" and self._security is not None:
            self._sender.refuse(sender, admission.encrypted(sender))

    def _refuse_frame(self, sender: str, kind: str, reason: str, now_s: float, count: int = 1) -> None:
        """Count refused frames; logs the first of a sender and kind, then the tenth, the hundredth ..."""
        known = self._registry.known(sender)
        total = self.record.refused_frame(sender, kind, count=count, named=known)
        if is_told(total, count):
            line = f"refused {total} message{'s' * (total != 1)} of {sender} ({kind}): {reason}"
            told = line if known else self._strangers.line(line, now_s)
            if told is not None:
                log.warning("%s", told)
                if kind in SAID:
                    self.observer.noted(told)
        if kind == "stranger":  # it may have joined before this start, or an earlier run
            self._sender.ask_for_hello(sender)

    def flush(self, now_s: float) -> None:
        """Make the waiting uploads durable with one sync, and then count them one after the other.

        If the disk refuses, they are kept, and the round waits until they are written.  They are acknowledged to the
        broker regardless, because it stops delivering after a few unacknowledged messages.
        """
        group = list(self._context.unwritten)
        self._context.unwritten.clear()
        self._write(group, now_s)
        for each in group:
            cast("Arrived", each.upload).incoming.acknowledge()

    def _write(self, group: list[Persist], now_s: float) -> None:
        while group:
            if buffered.applies(self.rounds):
                group = self._without_late(group, now_s)
            fit = buffered.fitting(self.rounds, [p.device for p in group])
            some, group = group[:fit], group[fit:]
            if not fit or self._context.refused or not self._write_together(some, now_s):
                self._context.refused += some + group
                return

    def _without_late(self, group: list[Persist], now_s: float) -> list[Persist]:
        """Return the uploads that still count; the rounds answer those for which it is now too late."""
        late = [p for p in group if not buffered.takes(self.rounds, p.device, p.place)]
        self._queue.feed(*(Received(p.device, p.place, p.upload, now_s) for p in late), now_s=now_s)
        return [p for p in group if p not in late]

    def _write_together(self, group: list[Persist], now_s: float) -> bool:
        """Write these uploads and count them; returns whether the disk took them."""
        buffers = buffered.applies(self.rounds)  # then the ledger keeps an upload under the exchange of its buffer
        places = [buffered.slot_of(self.rounds, p.device) if buffers else p.place for p in group]
        try:
            self.ledger.commit(
                [Row(place, p.device, cast("Arrived", p.upload).frame) for place, p in zip(places, group, strict=True)]
            )
        except StoreError as error:
            self._hold_for_disk(str(error), now_s)
            return False
        self._queue.feed(*(Persisted(p.device, p.place, p.upload, now_s) for p in group), now_s=now_s)
        return True

    def _hold_for_disk(self, reason: str, now_s: float) -> None:
        """Wait for a disk that refused uploads; logs this at once, and then every minute."""
        self._queue.hold(now_s)
        if now_s >= self._refusal_told_s + REFUSAL_TOLD_S:
            self._refusal_told_s = now_s
            self._context.note(f"{reason}; the round and its deadline wait, next try in {DISK_AGAIN_S:g} s")

    def _write_refused(self, now_s: float) -> None:
        """Retry the uploads that the disk refused, if that is due."""
        due_s = self._queue.next_due_s()
        if not self._context.refused or (self._queue.held and due_s is not None and now_s < due_s):
            return
        group, self._context.refused = self._context.refused, []
        self._write(group, now_s)
        if not self._context.refused:
            self._refusal_told_s = -math.inf
            self._context.note("the ledger is writable again; the round continues")

    # -- frames in --------------------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, origin: Origin, now_s: float) -> None:
        opened = self._intake.opened(incoming, origin)
        envelope, message = opened.envelope, opened.envelope.message
        if isinstance(message, (Control, Inquiry)):
            self._take_command(message, envelope.stamp, now_s)
            incoming.acknowledge()
            return
        if isinstance(message, PublicBlock):  # only operators may send it
            self._rollouts.take_block(message, now_s)
            incoming.acknowledge()
            return
        self._report.saw(origin.device, now_s)
        if isinstance(message, PublicRequest) and self._rollouts.serve(message, len(incoming.frame), now_s):
            incoming.acknowledge()
            return
        if isinstance(message, Upload):
            self._take_upload(message, incoming, opened.frame, now_s)
            return
        if isinstance(message, LogLines):
            self._desk.relay(message)
            incoming.acknowledge()
            return
        event: RoundEvent | None
        if opened.plain and isinstance(message, Hello):
            event = self._membership.refuse_plain(message, now_s)
        else:
            event = self._membership.take(envelope, opened.frame, len(incoming.frame), now_s)
        if isinstance(message, Hello) and self._registry.is_unbound(message):
            self._unbound[message.device] += 1
            if self._unbound[message.device] == UNBOUND_HELLOS:
                self._hint_at_backup()
        if isinstance(event, Joined):
            self._report.joined(event.device, now_s)
            self._rollouts.joined(event.device)
        elif isinstance(event, (Left, Lost)):
            self._report.parted(event.device)
        if event is not None:
            self._queue.feed(event, now_s=now_s)
        if isinstance(event, Joined) and event.device in self._orders.paused:
            self._queue.feed(Declined(event.device, None, now_s), now_s=now_s)
        incoming.acknowledge()

    def _take_command(self, message: Control | Inquiry, stamp: Stamp, now_s: float) -> None:
        """Carry out an operator's command, or answer a question."""
        event = None
        with legible():
            if isinstance(message, Inquiry):
                self._desk.tell(message, now_s)
            else:
                event = self._desk.carry_out(message, now_s, stamp if self._security else None)
        if event is not None:
            self._queue.feed(event, now_s=now_s)

    def _operate(self, operation: str, device: str | None) -> tuple[bool, str]:
        """Carry out a command given on this machine; returns whether it was carried out, and a line about it."""
        done, text, event = self._desk.ordered(operation, device, self._clock())
        if event is not None:
            self._queue.feed(event, now_s=self._clock())
        return done, text

    def _take_upload(self, upload: Upload, incoming: Incoming, frame: bytes, now_s: float) -> None:
        """Check an upload against what the exchange asks for; then the rounds decide whether it counts.

        frame: as the ledger keeps it.
        """
        self._hinted = True
        place = ExchangeId(upload.round, upload.exchange)
        hello = self.hellos.get(upload.device)
        of_another_run = upload.run != self._context.run and (upload.run is not None or self._security is not None)
        if of_another_run or upload.device not in self.numbers:
            self._sender.ask_for_hello(upload.device)
        if of_another_run:  # the device does not know this run yet, and has an upload for an earlier one
            log.info("an upload of %s to another run does not count; it is asked to join this one", upload.device)
            incoming.acknowledge()
            return
        if hello is None:
            raise RemoteProtocolError("knowledge", f"{upload.device} has not joined")
        self.record.came(upload.device, len(incoming.frame), "knowledge")
        if self._is_durable(place, upload.device):
            self._commands.answer(upload.device, place, "duplicate")
            incoming.acknowledge()
            return
        if upload.withheld:
            self._take_withheld(upload, place, now_s)
            incoming.acknowledge()
            return
        ageing = buffered.applies(self.rounds) and buffered.takes(self.rounds, upload.device, place)
        if place == self.rounds.place or ageing:
            try:
                with legible():
                    upload = self.reduction.coding.received(upload, "knowledge")
                    alone = self.record.control.was_alone(upload.device, place.round)
                    self._demands.check(upload, hello, place, closing=self.rounds.closing, alone=alone)
            except RemoteProtocolError as error:
                self.record.refused_uploads[upload.device] = place, one_line(str(error))
                self._commands.answer(upload.device, place, "refused", one_line(str(error)))
                raise
        arrived = Arrived(upload, incoming, frame)
        self._queue.feed(Received(upload.device, place, arrived, now_s), now_s=now_s)
        unwritten = self._context.unwritten
        if not unwritten or unwritten[-1].upload is not arrived:
            incoming.acknowledge()

    def _is_durable(self, place: ExchangeId, device: str) -> bool:
        if buffered.applies(self.rounds):
            return buffered.counted(self.rounds, device, place)
        return self.ledger.has(place, device)

    def _take_withheld(self, upload: Upload, place: ExchangeId, now_s: float) -> None:
        """Handle the report of a device that withholds its upload because its training diverged or failed."""
        if upload.knowledge or upload.closing:
            self._commands.answer(upload.device, place, "refused", "withheld, but with knowledge")
            raise RemoteProtocolError("knowledge", f"withheld {upload.withheld!r}, but with knowledge")
        self._queue.feed(Withheld(upload.device, place, remarks.why_withheld(upload)), now_s=now_s)

    def _patience_s(self) -> float:
        due_s = self.next_due_s()
        return POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self._clock()))
