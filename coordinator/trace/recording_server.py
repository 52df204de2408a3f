"""A Server that also writes a trace of its events, frames and refusals of the disk.

A refusal changes what the server does next, so a trace records each one with the number of the ledger's call within the
event, and a replay can repeat it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from coordinator.ledger import Ledger
from coordinator.serving.server import Server
from coordinator.trace.log import (
    CoordinatorStart,
    Ended,
    Entry,
    Flushed,
    FramesSent,
    Heard,
    LedgerRefused,
    Ticked,
    TraceWriter,
)
from edge_sdk.errors import RunFailed, StoreError
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.base import Screen, Transport, TransportEvent, Will


class TracedServer(Server):
    """Writes each event to the trace before handling it, each frame before sending it, and each refusal of its disk.

    Raises StoreError if the disk refuses the trace; the current command still sends its frames.
    """

    def __init__(self, trace: TraceWriter, **parts: Any) -> None:
        """parts: the arguments of a Server."""
        self._trace = trace
        self._tap = _Tap(parts["transport"], trace)
        self._calls = RecordedLedger(parts["ledger"], self._tap.record)
        super().__init__(**{**parts, "transport": self._tap, "ledger": self._calls})
        trace.write(
            CoordinatorStart(
                spec=self.spec,
                policy=self.rounds.policy,
                roster=self.roster,
                robust=self.robust,
                epoch=self.ledger.epoch,
                ledger=self._copy_of_ledger(),
                serves=self._public_server is not None,
            )
        )

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Record and handle an event of the transport."""
        self._trace.write(Heard(now_s, event))
        with self._calls.counted():
            super().handle(event, now_s)
        self._tap.check()

    def flush(self, now_s: float) -> None:
        """Record the commit and make the waiting uploads durable, if there are any."""
        if self._context.unwritten:
            self._trace.write(Flushed(now_s))
            with self._calls.counted():
                super().flush(now_s)
            self._tap.check()
        self._trace.flush()

    def tick(self, now_s: float) -> None:
        """Record the time and do what is due, if anything."""
        due_s = self.next_due_s()
        if due_s is not None and now_s >= due_s:
            self._trace.write(Ticked(now_s))
            with self._calls.counted():
                super().tick(now_s)
            self._tap.check()

    def close(self) -> None:
        """Close the server, and record its phase and state."""
        super().close()
        self._trace.write(Ended(self.rounds.phase.name, state_hash(self.method_state)))
        self._trace.flush()

    def _copy_of_ledger(self) -> bytes:
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "ledger.db"
            self.ledger.copy_to(copy)
            return copy.read_bytes()


def state_hash(state: object) -> bytes:
    """The SHA-256 of a method's state, 32 bytes."""
    return hashlib.sha256(storage.serialise(state)).digest()


def server(trace: TraceWriter | None, **parts: Any) -> Server:
    """A Server with these arguments; if a trace is given, one that writes it."""
    return Server(**parts) if trace is None else TracedServer(trace, **parts)


class _Tap:
    """A transport that records the frames sent through it.

    It still sends frames if the disk refuses the trace: otherwise a half-done command would be repeated.
    """

    def __init__(self, transport: Transport, trace: TraceWriter) -> None:
        self._transport, self._trace = transport, trace
        self._error: StoreError | None = None

    def record(self, entry: Entry) -> None:
        """Write an entry about the server; `check` raises its error later."""
        try:
            self._trace.write(entry)
        except StoreError as error:
            self._error = self._error or error

    def check(self) -> None:
        """Raise the StoreError of the trace, if any."""
        if self._error is not None:
            raise self._error

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Connect the transport."""
        self._transport.connect(subscriptions, will)

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Record a frame and send it."""
        self.record(FramesSent(topic, bytes(frame), retain))
        self._transport.send(topic, frame, retain=retain, answered=answered)

    def accept_up_to(self, frame_bytes: int) -> None:
        """Set the largest frame that the transport accepts, in bytes."""
        self._transport.accept_up_to(frame_bytes)

    def screen_with(self, screen: Screen) -> None:
        """Set the screen of the transport."""
        self._transport.screen_with(screen)

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """The next event of the transport."""
        return self._transport.poll(timeout_s)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


T = TypeVar("T")


class CountedLedger(ABC):
    """A ledger whose calls are numbered from 0 within each event; reading an attribute counts as a call."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._calls: int | None = None
        """The number of calls within this event, or None between events."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Number the calls from 0 until the end of the context."""
        self._calls = 0
        try:
            yield
        finally:
            self._calls = None

    def __getattr__(self, name: str) -> Any:
        found = self._numbered(partial(getattr, self._ledger, name))
        if not callable(found):
            return found
        return lambda *values, **named: self._numbered(partial(found, *values, **named))

    def _numbered(self, act: Callable[[], T]) -> T:
        if self._calls is None:
            return act()
        self._calls += 1
        return self._carried_out(self._calls - 1, act)

    @abstractmethod
    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        """Carry out the call of this number, or refuse it.  Raises StoreError."""


class RecordedLedger(CountedLedger):
    """Passes the disk's refusals on and records them."""

    def __init__(self, ledger: Ledger, record: Callable[[LedgerRefused], None]) -> None:
        """record: receives each refusal, and must not raise."""
        super().__init__(ledger)
        self._record = record

    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        try:
            return act()
        except StoreError as error:
            self._record(LedgerRefused(call, str(error)))
            raise


class ReplayedLedger(CountedLedger):
    """Refuses the calls that the run's disk refused."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._refused: dict[int, str] = {}

    @contextmanager
    def refusing(self, refused: Iterable[LedgerRefused]) -> Iterator[None]:
        """Refuse these calls until the end of the context.  Raises RunFailed if the server does not make them."""
        self._refused = {each.call: each.reason for each in refused}
        with self.counted():
            yield
        if self._refused:
            raise RunFailed("the run's disk refused a call of the ledger that the replay does not make")

    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        if call in self._refused:
            raise StoreError(self._refused.pop(call))
        return act()
