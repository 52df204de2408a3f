"""The coordinator's loop: frames in, commands out.

`run` is the loop of a deployment; a simulator drives the same object through `handle`, `flush` and `tick`.

What a frame is held against is in checks.py; who comes and goes in reception.py; what a round is in rounds.py; what
uploads add up to in tally.py; what is sent in postbox.py; where a start begins in restart.py.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator import admission, checks, remarks, restart, rounds
from coordinator.checks import Demands
from coordinator.ledger import Ledger, Row
from coordinator.methods.base import At, CoordinatorMethod
from coordinator.postbox import Postbox
from coordinator.public_shelf import PublicShelf
from coordinator.reception import Reception
from coordinator.record import NO_WORK, Work
from coordinator.reduction import Reduction
from coordinator.register import Register
from coordinator.rounds import Place, Policy
from coordinator.run_warnings import RunWarnings
from coordinator.update_norms import UpdateNorms
from coordinator.watcher import Silent, Watcher
from edge_sdk.errors import EdgeError, LocalProtocolError, RemoteProtocolError, StoreError, TransportError
from edge_sdk.protocol import storage, topics, transforms
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, Transport, TransportEvent

log = logging.getLogger(__name__)

POLL_S = 0.5
"""Longest sleep of the loop."""
GROUP = 256
"""Most frames that share one commit."""
DISK_AGAIN_S = 5.0
"""Pause before a write that the disk refused is tried again."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An upload on its way into the ledger."""

    place: Place
    upload: Upload
    incoming: Incoming


class Server:
    """One federation's coordinator."""

    def __init__(
        self,
        *,
        spec: FederationSpec,
        policy: Policy,
        method: CoordinatorMethod[Any, Any],
        transport: Transport,
        ledger: Ledger,
        roster: tuple[str, ...] = (),
        watcher: Watcher | None = None,
        shelf: PublicShelf | None = None,
        work: Callable[[], Work] = lambda: NO_WORK,
        clock: Callable[[], float] = time.monotonic,
        begun_s: float | None = None,
    ) -> None:
        """begun_s: on this clock, when a run that goes on opened its first exchange; None: nobody knows."""
        self.spec, self.transport, self.ledger = spec, transport, ledger
        self.roster = tuple(sorted(roster))
        self.watcher: Watcher = watcher or Silent()
        self._shelf = shelf
        """The public set, for devices that lack it; None: they must bring it."""
        self._clock, self._work = clock, work
        self.contract = contract = method.contract.under(spec.params)
        self._limits = checks.limits(spec, contract)
        self.transport.accept_up_to(self._limits.frame_bytes)
        self._chain = transforms.chain(spec)
        self._demands = Demands(spec, contract)
        self._warnings = RunWarnings(contract, spec, policy)
        self._norms = UpdateNorms()
        self._register = Register(spec, contract, self.roster, serving=shelf is not None)
        self.hellos: Mapping[str, Hello] = self._register.hellos
        """Of those who take part."""
        self.numbers: Mapping[str, int] = self._register.numbers
        """Of them, and of those who fetch the public set first."""
        self.reduction = Reduction(spec, method, ledger, self._limits, self._chain)
        self._tally, self.rounds = restart.standing(spec, policy, ledger, self._register, self.reduction)
        self.record = self._tally.record
        self.record.started_s = begun_s
        self._postbox = Postbox(spec, transport, epoch=lambda: ledger.epoch, sent=self.record.sent)
        self._reception = Reception(
            register=self._register,
            ledger=ledger,
            record=self.record,
            postbox=self._postbox,
            shelf=shelf,
            warnings=self._warnings,
            expected=policy.expected,
            welcomed=self._remind,
        )
        self._linked, self._link_fault = False, "it does not answer"
        self._pending: list[_Pending] = []
        self._held: tuple[rounds.Command, ...] = ()
        """What waits for the disk: the round stands still, and devices send again what came meanwhile."""
        self._disk_again_s = 0.0

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
                    self._feed(rounds.Broken(reason), self._clock())
                if not self._linked and self._clock() > give_up_s:
                    raise TransportError(f"no broker after {connect_within_s:g} s: {self._link_fault}")
        finally:
            self.close()

    def close(self) -> None:
        """Leave the broker and release the ledger."""
        self.transport.close()
        self.ledger.close()
        if self._shelf is not None:
            self._shelf.close()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the method's users should know: of its parameters, and of how this run went."""
        return self._warnings.all(self.hellos, self.record)

    @property
    def method(self) -> CoordinatorMethod[Any, Any]:
        """The coordinator's half of the method."""
        return self.reduction.method

    @property
    def method_state(self) -> Any:
        """What the method has made of all uploads so far."""
        return self.reduction.state

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.rounds.phase in (rounds.Phase.DONE, rounds.Phase.FAILED)

    # -- driven from outside ----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the link."""
        self._postbox.connect()

    def next_due_s(self) -> float | None:
        """When `tick` can next matter."""
        return self._disk_again_s if self._held else rounds.next_due_s(self.rounds)

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        due_s = self.next_due_s()
        if due_s is None or now_s < due_s:
            return
        if self._held:
            held, self._held = self._held, ()
            self._carry_out_all(held, now_s)
        else:
            self._feed(rounds.Tick(now_s), now_s)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Take in what the transport brought.  An illegal frame is counted, attributed, and changes nothing."""
        if isinstance(event, Connected):
            self._linked = True
            self._announce()
        elif isinstance(event, Disconnected):
            self._link_fault = event.reason
            self.watcher.noted(f"broker: {event.reason}")
            if event.final:
                self._feed(rounds.Broken(f"broker: {event.reason}"), now_s)
        elif isinstance(event, Rejected):
            self._refuse_frame(topics.sender(event.topic) or "unknown", event.kind, event.reason)
        elif self._held:
            event.acknowledge()  # its sender, without an answer, sends it again
        else:
            sender = topics.sender(event.topic) or "unknown"
            try:
                self._take(event, sender, now_s)
            except RemoteProtocolError as error:
                self._refuse_frame(sender, error.kind, str(error))
                event.acknowledge()
            except StoreError as error:
                self.watcher.noted(str(error))
                event.acknowledge()

    def _refuse_frame(self, sender: str, kind: str, reason: str) -> None:
        self.record.refused_frame(sender if self._register.known(sender) else "unknown", kind)
        log.warning("refused a frame of %s: %s", sender, reason)

    def flush(self, now_s: float) -> None:
        """Make the uploads that wait durable with one sync, then let them count.

        Where the disk will not have them, they are not answered, and devices, which keep them, send them again.  The
        broker is freed of them all the same: it stops delivering after a few that nobody acknowledged.
        """
        if not self._pending:
            return
        waiting, self._pending = self._pending, []
        try:
            self.ledger.commit(Row(each.place, each.upload.device, each.incoming.frame) for each in waiting)
        except StoreError as error:
            self.watcher.noted(str(error))
            for each in waiting:
                each.incoming.acknowledge()
            return
        for each in waiting:
            self._durable = each.upload
            self._feed(rounds.Persisted(each.upload.device, each.place, now_s), now_s)
            each.incoming.acknowledge()

    # -- frames in --------------------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming, sender: str, now_s: float) -> None:
        envelope = checks.opened(incoming.frame, sender, self.spec.federation, self._limits)
        if isinstance(envelope.message, Upload):
            self._take_upload(envelope.message, incoming, now_s)
            return
        event = self._reception.take(envelope, incoming.frame, now_s, self.watcher)
        if event is not None:
            self._feed(event, now_s)
        incoming.acknowledge()

    def _take_upload(self, upload: Upload, incoming: Incoming, now_s: float) -> None:
        """Check it against the contract; then the rounds decide whether it counts."""
        place = Place(upload.round, upload.exchange)
        hello = self.hellos.get(upload.device)
        if hello is None:
            raise RemoteProtocolError("knowledge", f"{upload.device} has not joined")
        self.record.bytes_up[upload.device] += len(incoming.frame)
        if self.ledger.has(place, upload.device):
            self._answer(upload.device, place, "duplicate")
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
                self._answer(upload.device, place, "refused", one_line(str(error)))
                raise
        before = len(self._pending)
        self._incoming = _Pending(place, upload, incoming)
        self._feed(rounds.Received(upload.device, place), now_s)
        if len(self._pending) == before:
            incoming.acknowledge()

    def _take_withheld(self, upload: Upload, place: Place, now_s: float) -> None:
        """A device whose learning diverged says so: nothing of it counts, and nobody waits for it."""
        if upload.knowledge or upload.closing:
            self._answer(upload.device, place, "refused", "withheld, and yet something to take")
            raise RemoteProtocolError("knowledge", f"withheld {upload.withheld!r}, and yet something to take")
        self._withheld = upload.withheld
        self._feed(rounds.Withheld(upload.device, place), now_s)

    # -- commands out -----------------------------------------------------------------------------------------------

    def _feed(self, event: rounds.Event, now_s: float) -> None:
        self.rounds, commands = rounds.advance(self.rounds, event)
        self._carry_out_all(commands, now_s)

    def _carry_out_all(self, commands: tuple[rounds.Command, ...], now_s: float) -> None:
        """In order; one that the disk refuses waits, and so does everything after it."""
        left = deque(commands)
        try:
            while left:
                self._carry_out(left[0], now_s)
                left.popleft()
        except StoreError as error:
            self._held, self._disk_again_s = tuple(left), now_s + DISK_AGAIN_S
            self.watcher.noted(f"{error}; the round waits, next try in {DISK_AGAIN_S:g} s")

    def _carry_out(self, command: rounds.Command, now_s: float) -> None:
        if isinstance(command, rounds.Invite):
            self._invite(command, now_s)
        elif isinstance(command, rounds.Persist):
            self._pending.append(self._incoming)
        elif isinstance(command, rounds.Fold):
            self._fold(command)
            self.record.waiting.answered(command.device, now_s)
        elif isinstance(command, rounds.Answer):
            self._answer(command.device, command.place, command.verdict, command.reason)
        elif isinstance(command, rounds.Reduce):
            self.record.waiting.closed(self.rounds.missing, now_s)
            self._reduce(command, now_s)
        elif isinstance(command, rounds.RoundDone):
            self._round_done(command.round, now_s)
        else:
            self._announce()

    def _invite(self, invite: rounds.Invite, now_s: float) -> None:
        if not self._register.anybody_learns(self.rounds.members):
            self._feed(rounds.Broken(admission.nobody_learns(self.rounds.members, self.contract)), now_s)
            return
        self.record.begun(now_s)
        at = At(invite.place.round, invite.place.exchange)
        try:
            shared = self.reduction.common(at)
            self._norms.begin(shared)
            common = self._postbox.packed_common(self._chain.apply(shared), at, anybody=invite.devices[0])
            for device in invite.devices:
                if not self._postbox.repeat(device, at):
                    personal = self.reduction.personal(at, self.numbers[device])
                    self.record.travelled("down", {**shared, **personal})
                    self._postbox.assign(device, at, common, self._chain.apply(personal), invite.left_s)
        except LocalProtocolError as error:
            self._feed(rounds.Broken(f"round {at.round}: nothing legal to send: {error}"), now_s)

    def _fold(self, fold: rounds.Fold) -> None:
        self._norms.add(fold.device, self._durable.knowledge)
        self._tally.add(self._durable)
        self._answer(fold.device, fold.place, "accepted")

    def _answer(self, device: str, place: Place, verdict: str, reason: str = "") -> None:
        word = "stale" if verdict == "late" else verdict
        self.record.updates[word] += 1
        if verdict == "withheld":
            self.watcher.noted(f"{device} withheld its upload of round {place.round + 1}: {self._withheld}")
            self.record.diverged(device, self._withheld)
            verdict = "accepted"  # it has nothing to send again
        elif verdict != "accepted":
            self.record.refused_frame(device, word)
        self._postbox.receipt(device, place, verdict, reason)

    def _reduce(self, reduce: rounds.Reduce, now_s: float) -> None:
        try:
            self.ledger.close_exchange(reduce.place, reduce.contributors, now=reduce.partial)
            self._tally.close(reduce.place, reduce.contributors)
        except StoreError:
            raise
        except EdgeError as error:
            self._feed(rounds.Broken(str(error)), now_s)
            return
        self._look_for_outliers(reduce.place)
        self._feed(rounds.Finished(now_s), now_s)

    def _look_for_outliers(self, place: Place) -> None:
        """Name the devices whose update was far larger than the others' (W17)."""
        for device, times in self._norms.close().items():
            self.record.outlier(device, times)
            self.watcher.noted(remarks.far_larger(place.round, device, times))

    def _round_done(self, round_: int, now_s: float) -> None:
        if len(self.record.rounds) == round_:  # else the disk refused the checkpoint, and this is another try
            for warning in self._warnings.round_ended(self.record):
                self.watcher.noted(warning)
            self.record.round_done(self._tally.contributors, self.rounds.policy.exchanges, now_s, self._work())
        self.record.asked, self.record.answered = self.rounds.asked, self.rounds.answered
        state, record = storage.serialise(self.method_state), self.record.to_json()
        self.ledger.checkpoint(round_ + 1, state, record, self.reduction.slots_after(round_))
        self.watcher.round_done(self.record.rounds[-1], self.spec.rounds, self.record)

    def _announce(self) -> None:
        ended = {rounds.Phase.DONE: "finished", rounds.Phase.FAILED: "failed"}
        self._postbox.announce(ended.get(self.rounds.phase, "ready"), self.rounds.reason)

    def _remind(self) -> None:
        """Whoever comes after the end does not know of it yet."""
        if self.over:
            self._announce()

    def _patience_s(self) -> float:
        due_s = self.next_due_s()
        return POLL_S if due_s is None else min(POLL_S, max(0.0, due_s - self._clock()))
