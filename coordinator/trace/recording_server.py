"""A Server that also writes a trace of its events, frames and refusals of the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.serving.server import Server
from coordinator.trace.ledger_calls import RecordedLedger
from coordinator.trace.log import CoordinatorStart, Ended, Entry, Flushed, FramesSent, Heard, Ticked, TraceWriter
from edge_sdk.errors import StoreError
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
        if self.unwritten:
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
