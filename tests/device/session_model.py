"""A device around the session machine, with an outbox, and what must hold at every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_sdk.device import session
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.protocol.exchange_id import ExchangeId

OVER = (SessionPhase.DONE, SessionPhase.REFUSED)


@dataclass
class Model:
    """Feeds events and checks every promise on the way."""

    state: SessionState = field(default_factory=SessionState)
    now_s: float = 0.0
    stored: set[ExchangeId] = field(default_factory=set)
    forgotten: set[ExchangeId] = field(default_factory=set)
    receipted: set[ExchangeId] = field(default_factory=set)
    arrows: set[tuple[SessionPhase, type, SessionPhase]] = field(default_factory=set)
    """Changes of phase, and what led to them."""

    def feed(self, event: session.SessionEvent) -> tuple[session.SessionCommand, ...]:
        before, shown = self.state, repr(self.state)
        after, commands = session.advance_session(before, event)
        assert session.advance_session(before, event) == (after, commands), "not a function of its input"
        assert repr(before) == shown, "changed its input"
        if isinstance(event, session.WorkDone) and before.phase is SessionPhase.WORKING:
            self.stored.add(before.exchange_id)
        if isinstance(event, session.Receipted):
            self.receipted.add(event.exchange_id)
        check_step(before, event, after, commands)
        self._carry_out(before, event, commands)
        if after.phase is not before.phase:
            self.arrows.add((before.phase, type(event), after.phase))
        self.state = after
        return commands

    def _carry_out(
        self, before: SessionState, event: session.SessionEvent, commands: tuple[session.SessionCommand, ...]
    ) -> None:
        for command in commands:
            if isinstance(command, session.SendUpload):
                assert command.exchange_id in self.stored, "sends what it does not have"
            elif isinstance(command, session.ForgetUpload):
                superseded = isinstance(event, session.Assigned) and command.exchange_id == before.exchange_id
                assert superseded or command.exchange_id in self.receipted, "let go without a receipt"
                self.forgotten.add(command.exchange_id)

    # -- events ------------------------------------------------------------------------------------------------------

    def link(self) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.LinkUp(self.now_s))

    def welcome(self, epoch: int = 1, *, lacking: bool = False, run: bytes = b"") -> tuple[session.SessionCommand, ...]:
        return self.feed(session.Welcomed(epoch, self.now_s, lacking, run))

    def fetched(self) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.Fetched(self.now_s))

    def assign(self, round_: int, exchange: int = 0, *, closing: bool = False) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.Assigned(ExchangeId(round_, exchange), closing, self.now_s))

    def work_done(self) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.WorkDone(self.now_s))

    def receipt(self, round_: int, exchange: int = 0) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.Receipted(ExchangeId(round_, exchange), self.now_s))

    def seen(
        self, epoch: int, *, over: bool = False, reason: str = "", run: bytes = b"", greet: bool = False
    ) -> tuple[session.SessionCommand, ...]:
        return self.feed(session.CoordinatorSeen(epoch, over, reason, self.now_s, run, greet))

    def wait_until_due(self) -> tuple[session.SessionCommand, ...]:
        due_s = session.session_due_s(self.state)
        assert due_s is not None
        self.now_s = max(self.now_s, due_s)
        return self.feed(session.SessionTick(self.now_s))

    def restart(self, *, epoch: int | None = None) -> None:
        """The power fails; the store knows the last stored upload, and whether it let go of it."""
        self.state = SessionState(epoch=self.state.epoch if epoch is None else epoch)
        if self.stored:
            last = max(self.stored)
            self.state = SessionState(epoch=self.state.epoch, exchange_id=last, pending=last not in self.forgotten)


def check_step(
    before: SessionState, event: session.SessionEvent, after: SessionState, commands: tuple[session.SessionCommand, ...]
) -> None:
    """What holds for every step."""
    kinds = [type(command) for command in commands]
    if before.phase in OVER:
        assert after == before
        assert commands == ()
        return
    assert after.exchange_id >= before.exchange_id, "went back"
    assert kinds.count(session.EndSession) == (after.phase in OVER)
    if after.phase is SessionPhase.REPORTING:
        assert after.pending
        assert not after.unfinished
    if after.phase is SessionPhase.WORKING:
        assert after.unfinished
    if after.phase in (SessionPhase.IDLE, SessionPhase.WORKING):
        assert not after.pending
    if before.phase is SessionPhase.FETCHING:
        assert session.StartWork not in kinds, "works without the public set"
        assert session.SendUpload not in kinds
    assert (session.FetchPublic in kinds) <= (after.phase is SessionPhase.FETCHING)
    for command in commands:
        if isinstance(command, session.StartWork):
            assert isinstance(event, session.Assigned)
            assert command.exchange_id == event.exchange_id == after.exchange_id
            assert event.exchange_id > before.exchange_id or before.unfinished
            assert after.phase is SessionPhase.WORKING
        elif isinstance(command, session.SendUpload):
            assert command.exchange_id == after.exchange_id
            assert after.phase is SessionPhase.REPORTING
        elif isinstance(command, session.EndSession):
            assert command.reason == after.reason
    if isinstance(event, session.Assigned):
        _check_assigned(before, event, after, commands)
    due_s = session.session_due_s(after)
    if after.linked and after.phase not in OVER and (after.phase is not SessionPhase.WORKING or after.owes_hello_at_s):
        assert due_s is not None
        assert session.advance_session(after, session.SessionTick(due_s))[1], "a tick that is due does nothing"
    else:
        assert due_s is None, "wakes for nothing"


def _check_assigned(
    before: SessionState, event: session.Assigned, after: SessionState, commands: tuple[session.SessionCommand, ...]
) -> None:
    if before.phase in (SessionPhase.JOINING, SessionPhase.FETCHING) or event.exchange_id < before.exchange_id:
        assert (after, commands) == (before, ())
    elif event.exchange_id > before.exchange_id:
        assert commands[-1] == session.StartWork(event.exchange_id)
        assert session.ForgetUpload(before.exchange_id) in commands or before.phase is not SessionPhase.REPORTING
        assert after.closing == event.closing
    else:
        assert after.phase in (SessionPhase.WORKING, SessionPhase.REPORTING), (
            "an Assign that is neither worked on nor answered"
        )
