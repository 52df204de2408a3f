"""Carries out the commands of the rounds: invites devices, adds up uploads, reduces, sends receipts, records rounds.

A command that the disk refuses can be repeated, because it writes to the disk before it changes any state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from coordinator.record import saved_record
from coordinator.record.control_group import drawn, drawn_line
from coordinator.record.run_record import FleetWork
from coordinator.rounds import (
    Broken,
    Dismiss,
    EndRun,
    Finished,
    Fold,
    Invite,
    Persist,
    Reduce,
    Rest,
    Rested,
    RoundCommand,
    RoundDone,
    RoundEvent,
    SendReceipt,
    Skip,
)
from coordinator.serving.aggregation import Aggregation
from coordinator.serving.devices import admission
from coordinator.serving.reduction import Reduction, StoredUpload
from coordinator.serving.round_pacing import why_stop
from coordinator.serving.run_context import RunContext
from coordinator.serving.sender import Sender
from edge_sdk.errors import EdgeError, EmptyRound, LocalProtocolError, RemoteProtocolError, RunFailed, StoreError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import Payload, Slot
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload
from edge_sdk.protocol.wires import Exchange, check_roles, down_slots, expectation, expected_weights
from edge_sdk.transport.base import Incoming


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """An upload and its frame: the object that the rounds pass from Received to Fold."""

    upload: Upload
    incoming: Incoming
    frame: bytes
    """As the ledger keeps it: not encrypted."""


class CommandHandler:
    """Carries out each command of the rounds with the parts of a server."""

    def __init__(
        self,
        context: RunContext,
        *,
        reduction: Reduction,
        aggregation: Aggregation,
        sender: Sender,
        work: Callable[[], FleetWork],
    ) -> None:
        """work: returns the fleet's computing work."""
        self._context, self._sender, self._work = context, sender, work
        self._spec, self._ledger, self._registry = context.spec, context.ledger, context.registry
        self._record, self._warnings, self._orders = context.record, context.warnings, context.orders
        self._reduction, self._aggregation, self._coding = reduction, aggregation, reduction.coding
        self._checks = AssignChecks(context.spec, reduction.method)
        self._withholding: dict[str, str] = {}
        """The devices whose last upload was withheld, and why."""
        self._told_of_rounds_lost = False
        self._told_of_teachers = False
        self._functions: Mapping[type[RoundCommand], Callable[[Any, float], RoundEvent | None]] = {
            Invite: self._invite,
            Persist: self._persist,
            Fold: self._fold,
            SendReceipt: self._receipt,
            Reduce: self._reduce,
            Rest: self._rest,
            Skip: self._skip,
            RoundDone: self._round_done,
            Dismiss: self._dismiss,
            EndRun: self._end_run,
        }

    def carry_out(self, command: RoundCommand, now_s: float) -> RoundEvent | None:
        """Carry out a command; returns the event that follows, if any.  Raises StoreError if the disk refuses."""
        try:
            return self._functions[type(command)](command, now_s)
        except RunFailed as error:
            return Broken(str(error))

    def answer(self, device: str, place: ExchangeId, verdict: str, reason: str = "") -> None:
        """Count the verdict on an upload, and send the receipt."""
        word = "stale" if verdict == "late" else verdict
        self._record.updates[word] += 1
        if verdict == "withheld":
            if self._withholding.get(device) != reason:  # log once, however many rounds it lasts
                self._context.note(f"{device} withheld its upload of round {place.round + 1}: {reason}")
            self._withholding[device] = reason
            self._record.diverged(device, reason)
            verdict, reason = "accepted", ""  # so that the device does not send it again
        elif verdict != "accepted":
            self._record.refused_frame(device, word)
            if verdict == "late":
                self._record.came_late(device, place)
            self._tell_of_rounds_lost(device, place)
        else:
            self._withholding.pop(device, None)
        self._sender.receipt(device, place, verdict, reason)

    def _tell_of_rounds_lost(self, device: str, place: ExchangeId) -> None:
        """Log once that a device is ahead: it does not answer Assigns, and the run fails without uploads."""
        own = self._context.rounds.place
        if place.round > own.round and not self._told_of_rounds_lost:
            self._told_of_rounds_lost = True
            self._context.note(
                f"{device} sends an upload of round {place.round + 1}, but this run is at round {own.round + 1}: if "
                "the run folder came from an older backup, restore a newer one, or begin a new run; devices do "
                "not repeat rounds"
            )

    def _invite(self, invite: Invite, now_s: float) -> Broken | None:
        members = self._context.rounds.members
        if not self._registry.anybody_learns(members):
            fault = admission.nobody_learns(members, self._reduction.method)
            if not self._registry.open_to_all:
                return Broken(fault)
            if not self._told_of_teachers:  # a device that learns may still join
                self._told_of_teachers = True
                self._context.note(fault)
        self._record.begun(now_s)
        at = invite.place
        after = self._record.done if self._record.stopped else None
        self._draw_control(at)
        self._fix_cap(at)
        self._context.observer.opened(at, invite.devices)
        alone = self._record.control.alone
        federated = [device for device in invite.devices if device not in alone]
        for device in alone.intersection(invite.devices):
            empty = self._sender.packed_common({}, at, anybody=device)
            self._sender.assign(device, at, empty, {}, invite.left_s, after, alone=True)
        if not federated:
            return None
        try:
            shared = self._reduction.common(at)
            self._checks.check_common(at, self._registry.hellos[federated[0]], shared)
            common = self._sender.packed_common(self._coding.apply(shared), at, anybody=federated[0])
            self._record.travelled("down", shared, times=len(federated))
            for device in federated:
                personal = self._reduction.personal(at, self._registry.numbers[device])
                self._checks.check_personal(at, self._registry.hellos[device], personal)
                if personal:
                    self._record.travelled("down", personal)
                if not self._sender.repeat(device, at):
                    self._sender.assign(device, at, common, self._coding.apply(personal), invite.left_s, after)
        except LocalProtocolError as error:
            return Broken(f"round {at.round}: nothing legal to send: {error}")
        return None

    def _persist(self, persist: Persist, _now_s: float) -> None:
        self._context.unwritten.append(persist)

    def _fold(self, fold: Fold, now_s: float) -> None:
        upload = cast("Arrived | StoredUpload", fold.upload).upload
        self._aggregation.add(upload)
        if not fold.answered:
            self.answer(fold.device, fold.place, "accepted")
        self._record.waiting.answered(fold.device, now_s)

    def _receipt(self, answer: SendReceipt, _now_s: float) -> None:
        self.answer(answer.device, answer.place, answer.verdict, answer.reason)

    def _reduce(self, reduce: Reduce, now_s: float) -> Finished | Broken:
        state = self._context.rounds
        self._record.waiting.closed(state.missing, now_s)  # not again after a wait for the disk
        try:
            self._ledger.close_exchange(reduce.place, reduce.contributors, now=reduce.partial)
            if self._aggregation.versions is not None:
                self._aggregation.versions.keep(reduce.place.round)
            noted = self._aggregation.close(reduce.place, reduce.contributors)
        except StoreError:
            raise
        except EmptyRound as error:
            skips = state.policy.forever or self._aggregation.excused
            return self._void(reduce.place, error, now_s) if skips else Broken(str(error))
        except EdgeError as error:
            return Broken(str(error))
        self._record.closed_without(
            (state.declined & state.members) - state.folded,
            state.silent,
            at=reduce.place,
            away=state.away,
            withheld=state.withheld,
            paused=self._orders.paused,
        )
        for note in noted:
            self._context.note(note)
        last = reduce.place.exchange + 1 == state.policy.exchanges
        if last and reduce.place.round + 1 < state.policy.rounds:
            self._record.stopped = why_stop(state.policy, self._record)
            if self._record.stopped:
                self._context.note(f"stops after round {reduce.place.round + 1}: {self._record.stopped}")
        return Finished(now_s, enough=bool(self._record.stopped))

    def _void(self, place: ExchangeId, why: EmptyRound, now_s: float) -> Finished:
        """End a round without uploads that count, with the method's state from its start."""
        self._context.note(f"round {place.round + 1} has no result: {why}")
        self._reduction.drop_all()
        checkpoint = self._ledger.last_checkpoint() if place.exchange else None
        if checkpoint is not None:
            self._reduction.load(checkpoint.state)
        self._aggregation.contributors = 0
        return Finished(now_s, void=True)

    def _rest(self, rest: Rest, now_s: float) -> Rested:
        rested = self._context.pacing.asked(now_s, skipped=rest.skipped)
        for line in self._context.pacing.news():
            self._context.note(line)
        return rested

    def _skip(self, skip: Skip, _now_s: float) -> None:
        line = self._context.pacing.skip(skip)
        if line is not None:
            self._context.note(line)

    def _draw_control(self, at: ExchangeId) -> None:
        """At the beginning of a period, draw the devices that train alone; durable, so that a restart keeps them."""
        group, state = self._record.control, self._context.rounds
        if at.exchange or state.closing or state.folded or not (line := self._begin_period(at.round)):
            return
        try:
            self._ledger.checkpoint(
                at.round, storage.serialise(self._reduction.state), saved_record.to_json(self._record)
            )
        except StoreError:
            self._record.control = group  # the invitation will be repeated
            raise
        self._context.note(line)

    def _begin_period(self, round_: int) -> str:
        """Draw the devices that train alone from a round on; returns a line, or an empty text if no period begins."""
        policy, group = self._context.policy, self._record.control
        if not policy.control or not group.due(round_, policy.control_rounds):
            return ""
        pool = [device for device in self._context.rounds.members if self._registry.may_train_alone(device)]
        alone = drawn(pool, policy.control, group, self._spec.federation)
        self._record.control = deepcopy(group)
        self._record.control.begin(alone, round_)
        return drawn_line(alone, len(pool), round_, policy.control_rounds)

    def _fix_cap(self, at: ExchangeId) -> None:
        """Fix the first round's cap on counts, durably; checkpoints have those of later rounds."""
        record = self._record
        if record.count_cap is not None or at.exchange:
            return
        self._aggregation.screen.fix_cap()
        try:
            self._ledger.checkpoint(at.round, storage.serialise(self._reduction.state), saved_record.to_json(record))
        except StoreError:
            record.count_cap = None  # the invitation will be repeated
            raise

    def _round_done(self, done: RoundDone, now_s: float) -> None:
        state, record = self._context.rounds, self._record
        slots = self._reduction.slots_after(done.round)
        if record.done == done.round:  # else a retry, after the disk refused the checkpoint
            for warning in self._warnings.round_ended(record, self._reduction.state):
                self._context.note(warning)
            record.round_done(self._aggregation.contributors, state.policy.exchanges, now_s, self._work())
            if state.policy.forever:
                self._context.pacing.roll_up()
            if state.policy.buffer and not state.closing and (line := self._begin_period(record.done)):
                self._context.note(line)  # the next buffer may hold uploads before any device is invited
        record.asked, record.answered = state.asked, state.answered
        self._aggregation.screen.fix_cap()
        if slots is not None:
            self._aggregation.screen.slots_changed(slots)
        state_bytes = storage.serialise(self._reduction.state)
        rolled = self._context.pacing.completed() if state.policy.forever else None
        self._ledger.checkpoint(
            done.round + 1,
            state_bytes,
            saved_record.to_json(record),
            slots,
            saved_record.new_history(record),
            rolled=rolled,
        )
        record.saved()
        self._orders.delete_forgotten(self._registry)
        self._context.observer.round_done(record.rounds[-1], self._spec.rounds, record)

    def _dismiss(self, dismiss: Dismiss, _now_s: float) -> None:
        for device in dismiss.devices:
            hello = self._registry.hellos.get(device)
            refusal = admission.taken_out(device, self._spec.federation)
            self._sender.refuse(device, refusal, hello.instance if hello else None)

    def _end_run(self, end: EndRun, _now_s: float) -> None:
        self._sender.announce("failed" if end.reason else "finished", end.reason)


# -- Checks of the knowledge that the method sends: without them each device would refuse it, in its own log ----------


class AssignChecks:
    """Checks the knowledge of Assigns against the exchanges of the method, as each device does."""

    def __init__(self, spec: FederationSpec, method: Method[Any]) -> None:
        self._method, self._rounds = method, spec.rounds
        self._sizes = expectation(spec)

    def check_common(self, at: ExchangeId, hello: Hello, common: Mapping[str, Payload]) -> None:
        """Raise LocalProtocolError, which names the method, for knowledge that does not fit the exchange at `at`.

        common: for all devices, before the federation's transforms.  hello: of one of them.
        """
        self._check(common, down_slots(self._exchange(at))[0], hello)

    def check_personal(self, at: ExchangeId, hello: Hello, personal: Mapping[str, Payload]) -> None:
        """Check the knowledge for the device of this Hello, as `check_common` does."""
        slots = down_slots(self._exchange(at))[1]
        if slots or personal:
            self._check(personal, slots, hello)

    def _exchange(self, at: ExchangeId) -> Exchange:
        return self._method.closing if at.round == self._rounds else self._method.exchanges[at.exchange]

    def _check(self, given: Mapping[str, Payload], slots: Mapping[str, Slot], hello: Hello) -> None:
        expect = expected_weights(
            self._sizes, count=hello.weight_count, feature_dim=hello.feature_dim, layout=hello.layout or b""
        )
        try:
            check_roles(given, slots, expect)
        except RemoteProtocolError as error:
            raise LocalProtocolError(
                f"the method {self._method.name} gives knowledge that its exchange does not declare: {error}"
            ) from error
