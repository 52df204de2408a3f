"""Replay of a trace: the same server on the same events gives the same frames and the same state, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.serving.equipment import Equipment, ready_method
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.server import Server
from coordinator.trace.log import CoordinatorStart, Ended, Entry, Flushed, FramesSent, Heard, LedgerRefused, Ticked
from coordinator.trace.recording_server import ReplayedLedger, state_hash
from edge_sdk.errors import RemoteProtocolError, RunFailed, UsageError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Message
from edge_sdk.transport.base import Screen, TransportEvent, Will


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of a replay."""

    server: Server
    """The server of the last start, at its end."""
    lives: int
    heard: int
    frames: int
    """The number of frames sent, all equal to the recorded ones."""
    refusals: int
    """The number of calls that the ledger's disk refused."""
    state: bytes
    """The hash of the method's state, 32 bytes."""
    ended: bool
    """Whether the trace records how the coordinator of the last start stopped."""


def replay(entries: Iterable[Entry], equipment: Equipment) -> ReplayResult:
    """Feed a trace to a new server.  Loads only the equipment that the run needed.

    Raises RunFailed at the first frame that differs from the recorded one, or if the state at the end differs, and
    UsageError for a trace without a beginning.
    """
    checker = _Checker()
    server: Server | None = None
    ledger: ReplayedLedger | None = None
    lives = heard = refusals = 0
    ended = False
    with ExitStack() as all_lives:
        for event in _events(entries):
            given = event.given
            if isinstance(given, CoordinatorStart):
                checker.sent.clear()  # a killed coordinator may not have recorded its last frames
                ledger = _ledger(given)
                before, server, lives, ended = server, _begin(given, ledger, checker, equipment), lives + 1, False
                if before is not None:
                    lost = saved_record.unclosed(before.record)  # counts that the restart lost
                    saved_record.remember(server.record, lost)
                all_lives.callback(server.close)
                server.connect()
            elif server is None or ledger is None:
                raise UsageError("the trace begins in the middle: its first entries are missing")
            elif isinstance(given, Ended):
                checker.settle()
                ended = True
                _check_state(given, server)
            else:
                checker.settle()
                heard += isinstance(given, Heard)
                refusals += len(event.refused)
                with ledger.refusing(event.refused):
                    _act(server, given)
            for frame in event.sent:
                checker.expect(frame)
    if server is None:
        raise UsageError("the trace is empty: the run was killed before the coordinator began")
    return ReplayResult(
        server=server,
        lives=lives,
        heard=heard,
        frames=checker.frames,
        refusals=refusals,
        state=state_hash(server.method_state),
        ended=ended,
    )


@dataclass(frozen=True, slots=True)
class _Event:
    """An event given to the server, and the entries that followed from it."""

    given: CoordinatorStart | Heard | Flushed | Ticked | Ended
    sent: list[FramesSent] = field(default_factory=list)
    refused: list[LedgerRefused] = field(default_factory=list)


def _events(entries: Iterable[Entry]) -> Iterator[_Event]:
    """Each event with the entries that follow from it: a replay must know the disk's refusals before the event."""
    event: _Event | None = None
    for entry in entries:
        if not isinstance(entry, (FramesSent, LedgerRefused)):
            if event is not None:
                yield event
            event = _Event(entry)
        elif event is None:
            raise UsageError("the trace begins in the middle: its first entries are missing")
        elif isinstance(entry, FramesSent):
            event.sent.append(entry)
        else:
            event.refused.append(entry)
    if event is not None:
        yield event


def _ledger(life: CoordinatorStart) -> ReplayedLedger:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        path.write_bytes(life.ledger)
        ledger = Ledger(None, path)
    ledger.epoch = life.epoch
    return ReplayedLedger(ledger)


def _begin(life: CoordinatorStart, ledger: ReplayedLedger, checker: _Checker, equipment: Equipment) -> Server:
    return Server(
        spec=life.spec,
        policy=life.policy,
        method=ready_method(life.spec, equipment),
        transport=checker,
        ledger=cast("Ledger", ledger),
        roster=life.roster,
        robust=life.robust,
        public_server=PublicSetServer(equipment.samples) if life.serves else None,
    )


def _act(server: Server, entry: Heard | Flushed | Ticked) -> None:
    if isinstance(entry, Heard):
        server.handle(entry.event, entry.now_s)
    elif isinstance(entry, Flushed):
        server.flush(entry.now_s)
    else:
        server.tick(entry.now_s)


def _check_state(ended: Ended, server: Server) -> None:
    state, phase = state_hash(server.method_state), server.rounds.phase.name
    if (state, phase) != (ended.state, ended.phase):
        raise RunFailed(
            f"the replay ended as {phase} with state {state.hex()[:16]}, the run as {ended.phase} with "
            f"{ended.state.hex()[:16]}: the method has changed, or a computation is not repeatable"
        )


class NullTransport:
    """A transport without a link that keeps its frames."""

    def __init__(self) -> None:
        self.subscriptions: tuple[str, ...] = ()
        self.sent: deque[FramesSent] = deque()

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Keep the subscriptions."""
        del will
        self.subscriptions = tuple(subscriptions)

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Keep the frame."""
        del answered
        self.sent.append(FramesSent(topic, bytes(frame), retain))

    def accept_up_to(self, frame_bytes: int) -> None:
        """Do nothing: no frames arrive."""

    def screen_with(self, screen: Screen) -> None:
        """Do nothing: the trace records only the number of messages that the screen refused."""

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """Return None: no events occur."""

    def close(self) -> None:
        """Do nothing: no link is open."""


class _Checker(NullTransport):
    """Compares the frames that the replay sends with the recorded ones."""

    frames = 0

    def expect(self, recorded: FramesSent) -> None:
        """Compare the next frame with a recorded one.  Raises RunFailed if they differ."""
        if not self.sent:
            raise RunFailed(f"frame {self.frames + 1}: the run sent {_named(recorded)}, the replay nothing")
        replayed = self.sent.popleft()
        if replayed != recorded:
            raise RunFailed(f"frame {self.frames + 1}: the run sent {_named(recorded)}, the replay {_named(replayed)}")
        self.frames += 1

    def settle(self) -> None:
        """Raise RunFailed if the replay sent more frames than were recorded."""
        if self.sent:
            raise RunFailed(f"after frame {self.frames}: the replay sent {_named(self.sent[0])}, the run nothing")


def message_in(frame: bytes) -> Message | None:
    """The message in a frame of a trace, without a size limit, or None if the frame is not legal."""
    try:
        message: Message = codec.decode(frame, Limits(len(frame), len(frame))).message
    except RemoteProtocolError:
        return None
    return message


def _named(sent: FramesSent) -> str:
    """Describe a frame by message, exchange, topic and size."""
    message = message_in(sent.frame)
    if message is None:
        return f"{len(sent.frame)} bytes on {sent.topic}"
    at = "".join(f" {name} {getattr(message, name)}" for name in ("round", "exchange") if hasattr(message, name))
    return f"{type(message).__name__}{at} on {sent.topic} ({len(sent.frame)} bytes)"
