"""A server that leaves a trace: it does what a Server does, and writes down what happened."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.serving.server import Server
from coordinator.trace.log import CoordinatorStart, Ended, Flushed, FramesSent, Heard, Ticked, TraceWriter
from edge_sdk.errors import StoreError
from edge_sdk.protocol import storage
from edge_sdk.transport.base import Transport, TransportEvent, Will


class TracedServer(Server):
    """Writes each thing down before it acts on it, and each frame before it goes.

    Raises StoreError where the disk will not have the trace; what was begun is then done all the same.
    """

    def __init__(self, trace: TraceWriter, **parts: Any) -> None:
        """`parts`: what a Server takes."""
        self._trace = trace
        self._tap = _Tap(parts["transport"], trace)
        super().__init__(**{**parts, "transport": self._tap})
        trace.write(
            CoordinatorStart(
                spec=self.spec,
                policy=self.rounds.policy,
                roster=self.roster,
                epoch=self.ledger.epoch,
                ledger=self._copy_of_ledger(),
                serves=self._public_server is not None,
            )
        )

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """See Server."""
        self._trace.write(Heard(now_s, event))
        super().handle(event, now_s)
        self._tap.check()

    def flush(self, now_s: float) -> None:
        """See Server."""
        if self._unwritten:
            self._trace.write(Flushed(now_s))
            super().flush(now_s)
            self._tap.check()
        self._trace.flush()

    def tick(self, now_s: float) -> None:
        """See Server."""
        due_s = self.next_due_s()
        if due_s is not None and now_s >= due_s:
            self._trace.write(Ticked(now_s))
            super().tick(now_s)
            self._tap.check()

    def close(self) -> None:
        """See Server."""
        super().close()
        self._trace.write(Ended(self.rounds.phase.name, state_hash(self.method_state)))
        self._trace.flush()

    def _copy_of_ledger(self) -> bytes:
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "ledger.db"
            self.ledger.copy_to(copy)
            return copy.read_bytes()


def state_hash(state: object) -> bytes:
    """Of what a method has made of all uploads: 32 bytes."""
    return hashlib.sha256(storage.serialise(state)).digest()


def server(trace: TraceWriter | None, **parts: Any) -> Server:
    """A Server of these parts; one that leaves a trace, where there is one to leave."""
    return Server(**parts) if trace is None else TracedServer(trace, **parts)


class _Tap:
    """A transport that writes down what is sent through it.

    A trace that the disk refuses does not stop what is being sent: half of a command would be done, and done again.
    """

    def __init__(self, transport: Transport, trace: TraceWriter) -> None:
        self._transport, self._trace = transport, trace
        self._error: StoreError | None = None

    def check(self) -> None:
        """Raise what the disk said, if it refused."""
        if self._error is not None:
            raise self._error

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """See Transport."""
        self._transport.connect(subscriptions, will)

    def send(self, topic: str, frame: bytes, *, retain: bool = False) -> None:
        """See Transport."""
        try:
            self._trace.write(FramesSent(topic, frame, retain))
        except StoreError as error:
            self._error = self._error or error
        self._transport.send(topic, frame, retain=retain)

    def accept_up_to(self, frame_bytes: int) -> None:
        """See Transport."""
        self._transport.accept_up_to(frame_bytes)

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """See Transport."""
        return self._transport.poll(timeout_s)

    def close(self) -> None:
        """See Transport."""
        self._transport.close()
