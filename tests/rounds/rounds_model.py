"""A coordinator around the round machine, with a ledger that can lose power, and what must hold at every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator import rounds
from coordinator.rounds import RoundPhase, RoundPolicy, RoundState
from edge_sdk.protocol.exchange_id import ExchangeId

OPEN = (RoundPhase.GATHERING, RoundPhase.COLLECTING, RoundPhase.FINISHING, RoundPhase.RESTING)
OVER = (RoundPhase.DONE, RoundPhase.FAILED)


def names(count: int) -> tuple[str, ...]:
    return tuple("abcdefghijklmnopqrstuvwxyz"[:count])


def sent(device: str, place: ExchangeId) -> object:
    """In place of an upload: who made it, and what for."""
    return f"{device} for round {place.round}, exchange {place.exchange}"


@dataclass
class Model:
    """Feeds events, carries commands out, and checks every promise on the way."""

    policy: RoundPolicy
    state: RoundState = field(init=False)
    now_s: float = 0.0
    pending: list[tuple[str, ExchangeId, object]] = field(default_factory=list)
    """Uploads that were told to be persisted."""
    rows: dict[ExchangeId, dict[str, object]] = field(default_factory=dict)
    """Durable uploads by device."""
    closed: dict[ExchangeId, tuple[str, ...]] = field(default_factory=dict)
    """Durable records of closed exchanges."""
    riding: dict[ExchangeId, tuple[str, ...]] = field(default_factory=dict)
    """Records that wait for the next commit."""
    round: int = 0
    """The round of the last checkpoint."""
    reduced: dict[ExchangeId, tuple[str, ...]] = field(default_factory=dict)
    told: dict[ExchangeId, tuple[str, ...]] = field(default_factory=dict)
    """Contributors of exchanges whose outcome somebody may have heard of."""
    assigned: dict[str, ExchangeId] = field(default_factory=dict)
    """The newest Assign on its way to each device."""
    known: set[str] = field(default_factory=set)
    """Devices that have joined, as the ledger has them."""
    opens_at_s: float = 0.0
    """When the pace lets rounds open."""
    skips: list[str] = field(default_factory=list)
    """Why attempts at a round were skipped."""
    arrows: set[tuple[RoundPhase, type, RoundPhase]] = field(default_factory=set)
    """Changes of phase, and what led to them."""

    def __post_init__(self) -> None:
        self.state = RoundState(policy=self.policy)

    @property
    def over(self) -> bool:
        return self.state.phase in OVER

    # -- events ------------------------------------------------------------------------------------------------------

    def feed(self, event: rounds.RoundEvent) -> tuple[rounds.RoundCommand, ...]:
        before, shown = self.state, repr(self.state)
        after, commands = rounds.advance_rounds(before, event)
        assert rounds.advance_rounds(before, event) == (after, commands), "not a function of its input"
        assert repr(before) == shown, "changed its input"
        check_state(after)
        check_step(before, event, after, commands)
        if isinstance(event, rounds.Joined):
            self.known.add(event.device)
        if isinstance(event, rounds.Received):
            self._check_asked(before, event, commands)
        if after.phase is not before.phase:
            self.arrows.add((before.phase, type(event), after.phase))
        self.state = after
        for command in commands:
            self.carry_out(command)
        asked = [command for command in commands if isinstance(command, rounds.Rest)]
        return commands + (self.paced(skipped=asked[-1].skipped) if asked else ())

    def paced(self, *, skipped: bool) -> tuple[rounds.RoundCommand, ...]:
        """The answer of a pace that waits for `opens_at_s`, and a minute after an attempt was skipped."""
        at_s = max(self.opens_at_s, self.now_s + 60 * skipped)
        until_s = at_s if at_s > self.now_s else None
        return self.feed(rounds.Rested(self.now_s, until_s, "a test" if until_s else ""))

    def _check_asked(
        self, state: RoundState, event: rounds.Received, commands: tuple[rounds.RoundCommand, ...]
    ) -> None:
        """What was asked of a device counts while the exchange is open, whatever happened since."""
        one = event.device
        asked = event.place == self.assigned.get(one) == state.place
        if (
            asked
            and state.phase in (RoundPhase.COLLECTING, RoundPhase.RESTING)
            and one in state.members - state.folded - state.withheld
        ):
            assert commands == (rounds.Persist(one, event.place, event.upload),), "asked, and then refused"

    def join(self, device: str) -> tuple[rounds.RoundCommand, ...]:
        return self.feed(rounds.Joined(device, self.now_s))

    def upload(
        self, device: str, place: ExchangeId | None = None, upload: object | None = None
    ) -> tuple[rounds.RoundCommand, ...]:
        place = self.state.place if place is None else place
        if device in self.rows.get(place, ()):  # the server asks its ledger first
            return ()
        return self.feed(rounds.Received(device, place, sent(device, place) if upload is None else upload))

    def commit(self, index: int = 0) -> tuple[rounds.RoundCommand, ...]:
        """One of the waiting uploads becomes durable."""
        device, place, upload = self.pending.pop(index % len(self.pending))
        self._write(device, place, upload)
        return self.feed(rounds.Persisted(device, place, upload, self.now_s))

    def answer(self, device: str) -> tuple[rounds.RoundCommand, ...]:
        """An upload that arrives and is durable at once."""
        commands = self.upload(device)
        persist = (device, self.state.place, sent(device, self.state.place))
        if persist in self.pending:
            commands += self.commit(self.pending.index(persist))
        return commands

    def finish(self) -> tuple[rounds.RoundCommand, ...]:
        return self.feed(rounds.Finished(self.now_s))

    def wait(self, seconds: float) -> tuple[rounds.RoundCommand, ...]:
        self.now_s += seconds
        return self.tick()

    def tick(self) -> tuple[rounds.RoundCommand, ...]:
        """As the server does it: only when one is due."""
        due_s = rounds.rounds_due_s(self.state)
        return self.feed(rounds.RoundTick(self.now_s)) if due_s is not None and self.now_s >= due_s else ()

    def wait_until_due(self) -> tuple[rounds.RoundCommand, ...]:
        due_s = rounds.rounds_due_s(self.state)
        assert due_s is not None, f"nothing would ever happen: {self.state}"
        self.now_s = max(self.now_s, due_s)
        return self.feed(rounds.RoundTick(self.now_s))

    def leave(self, device: str) -> tuple[rounds.RoundCommand, ...]:
        return self.feed(rounds.Left(device, self.now_s))

    def crash(self, *, after_commit: bool = False) -> None:
        """Power is lost, perhaps between a commit and its Persisted; what is durable is all that is left."""
        if after_commit:
            for device, place, upload in self.pending:
                self._write(device, place, upload)
        self.pending, self.riding = [], {}
        exchange = sum(place.round == self.round for place in self.closed)
        place = ExchangeId(self.round, exchange)
        self.state = rounds.resumed(
            self.policy, place, frozenset(self.rows.get(place, ())), known=frozenset(self.known)
        )
        self.now_s = 0.0
        check_state(self.state)

    # -- commands ----------------------------------------------------------------------------------------------------

    def carry_out(self, command: rounds.RoundCommand) -> None:
        if isinstance(command, rounds.Persist):
            self.pending.append((command.device, command.place, command.upload))
        elif isinstance(command, rounds.Fold):
            assert command.device in self.rows[command.place], "folded before it was durable"
            assert command.upload == self.rows[command.place][command.device], "folded another one than is durable"
        elif isinstance(command, rounds.Reduce):
            assert self.told.get(command.place, command.contributors) == command.contributors, "another outcome"
            self.reduced[command.place] = command.contributors
            (self.closed if command.partial else self.riding)[command.place] = command.contributors
        elif isinstance(command, rounds.RoundDone):
            assert command.round == self.round, "a round ended out of turn"
            self.round += 1
            self.riding = {}
            self.closed = {place: by for place, by in self.closed.items() if place.round >= self.round}
            self.rows = {place: by for place, by in self.rows.items() if place.round >= self.round}
        elif isinstance(command, rounds.Skip):
            self.skips.append(command.reason)
        elif isinstance(command, rounds.Invite):
            assert command.place.round == self.round, "invited before the round before it was on record"
            self.told |= {place: by for place, by in self.reduced.items() if place < command.place}
            self.assigned |= dict.fromkeys(command.devices, command.place)

    def _write(self, device: str, place: ExchangeId, upload: object) -> None:
        self.closed |= self.riding
        self.riding = {}
        if place.round >= self.round:
            self.rows.setdefault(place, {}).setdefault(device, upload)


def check_state(state: RoundState) -> None:
    """What holds in every state."""
    if state.phase in (RoundPhase.COLLECTING, RoundPhase.FINISHING, RoundPhase.DONE):
        assert state.folded <= state.invited
    assert state.away <= state.members
    assert not state.members & state.gone
    assert not state.withheld & state.invited, "waits for somebody who said that nothing will come"
    if state.phase is RoundPhase.COLLECTING:
        assert state.missing <= state.members, "waits for somebody who is not here"
    assert ExchangeId(0, 0) <= state.place <= ExchangeId(state.policy.rounds, 0)
    assert state.place.exchange < state.policy.exchanges
    if state.phase in OVER:
        assert rounds.rounds_due_s(state) is None
    if state.phase is RoundPhase.COLLECTING:
        assert rounds.rounds_due_s(state) is not None


def check_step(
    before: RoundState, event: rounds.RoundEvent, after: RoundState, commands: tuple[rounds.RoundCommand, ...]
) -> None:
    """What holds for every step."""
    policy = before.policy
    assert after.place >= before.place, "went back"
    if after.place == before.place:
        assert after.folded >= before.folded, "forgot an upload"
    kinds = [type(command) for command in commands]
    if before.phase in OVER:
        assert after.phase is before.phase
        assert set(kinds) <= {rounds.SendReceipt}
    assert kinds.count(rounds.EndRun) == (before.phase in OPEN and after.phase in OVER)
    for command in commands:
        if isinstance(command, rounds.Fold):
            assert before.phase in (RoundPhase.COLLECTING, RoundPhase.RESTING)
            assert isinstance(event, rounds.Persisted)
            assert (command.device, command.place) == (event.device, event.place) == (event.device, before.place)
            assert command.upload is event.upload
            assert command.device not in before.folded, "folded twice"
        elif isinstance(command, rounds.Reduce):
            assert len(command.contributors) >= after.needed, "closed below the quorum"
            assert command.contributors == tuple(sorted(after.folded))
            whole = after.members <= after.folded and len(after.folded) >= policy.expected
            assert command.partial is not whole
        elif isinstance(command, rounds.Invite):
            assert command.devices
            assert command.devices == tuple(sorted(command.devices))
            assert set(command.devices) <= after.missing
            assert command.place == after.place
            assert 0 <= command.left_s <= policy.deadline_s + 1e-9
        elif isinstance(command, rounds.EndRun):
            assert command.reason == after.reason
            assert bool(command.reason) is (after.phase is RoundPhase.FAILED)
            if after.phase is RoundPhase.DONE:
                assert after.closing
                assert len(after.folded) >= after.needed, "done below the quorum"
    if isinstance(event, rounds.Received):
        _check_upload(before, event, commands)
    if isinstance(event, rounds.Withheld) and before.phase is RoundPhase.COLLECTING:
        assert after.folded == before.folded, "counted what is not there"
        assert isinstance(commands[0], rounds.SendReceipt)
        assert commands[0].verdict != "withheld" or commands[0].reason == event.reason
    if isinstance(event, (rounds.Left, rounds.DeviceRefused)) and before.phase in (
        RoundPhase.GATHERING,
        RoundPhase.COLLECTING,
    ):
        _check_leaving(before, event, after)


def _check_upload(before: RoundState, event: rounds.Received, commands: tuple[rounds.RoundCommand, ...]) -> None:
    """Every upload is answered with the right verdict, or persisted, or its exchange is still to be opened."""
    place, durable = before.place, event.place == before.place and event.device in before.folded
    if before.phase is RoundPhase.GATHERING and event.place >= place and not durable:
        assert commands == ()
        return
    (command,) = commands
    if durable:
        expected = "duplicate"
    elif event.place > place:
        expected = "refused"
    elif event.place < place or before.phase not in (RoundPhase.COLLECTING, RoundPhase.RESTING):
        expected = "late"
    elif not before.may_answer(event.device):
        expected = "late" if before.phase is RoundPhase.RESTING else "refused"
    else:
        assert command == rounds.Persist(event.device, event.place, event.upload)
        return
    assert isinstance(command, rounds.SendReceipt)
    assert (command.device, command.place, command.verdict) == (event.device, event.place, expected)
    assert bool(command.reason) is (expected != "duplicate")


def _check_leaving(before: RoundState, event: rounds.Left | rounds.DeviceRefused, after: RoundState) -> None:
    """Fails at once if, and only if, the quorum is out of reach, and says who is to blame."""
    policy, members, gone = before.policy, before.members - {event.device}, before.gone | {event.device}
    if before.closing:
        members |= before.folded
    impossible = max(len(members), policy.expected - len(gone - members)) < policy.quorum
    impossible = impossible and not policy.forever
    assert (after.phase is RoundPhase.FAILED) is impossible
    if impossible:
        for device in gone:
            assert device in after.reason
