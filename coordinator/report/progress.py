"""How a run goes, on the terminal: one live line where there is a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, TextIO

from coordinator.record import Record
from coordinator.report.result import RoundResult
from coordinator.report.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from coordinator.watcher import Watcher

PLAIN_LINES = 10
"""About how many progress lines a log gets."""


class Progress:
    """A Watcher that tells people.  `brief`: of a run that goes well, a log gets only the last line."""

    def __init__(self, label: str, stream: TextIO | None = None, *, brief: bool = False) -> None:
        self._label, self._stream, self._brief = label, stream or sys.stderr, brief
        self._live = self._stream.isatty()
        self._begun_s = time.monotonic()
        self._resumed_at: int | None = None

    def joined(self, device: str, count: int, expected: int) -> None:
        """See Watcher."""
        if self._live or not self._brief:
            self._line(f"{device} joined ({count} of {expected})", passing=True)
        if count == expected:
            self._begun_s = time.monotonic()

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""
        self._line(f"refused {message}" if device in message else f"refused {device}: {message}")

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""
        last = result.round == of
        if self._resumed_at is None:
            self._resumed_at = result.round - 1
        if not (self._live or last) and (self._brief or result.round % max(1, of // PLAIN_LINES)):
            return
        elapsed_s = time.monotonic() - self._begun_s
        left_s = elapsed_s / (result.round - self._resumed_at) * (of - result.round)
        measured = record.accuracy[max(record.accuracy)].values() if record.accuracy else ()
        accuracy = f", accuracy {statistics.fmean(measured):.1%}" if measured else ""
        sent = human_bytes(record.bytes_up.total() + record.bytes_down.total())
        rest = "" if last else f", about {human_seconds(left_s)} left"
        self._line(
            f"{self._bar(result.round / of)} round {result.round}/{of}{accuracy}, {sent} exchanged{rest}",
            passing=not last,
        )

    def noted(self, message: str) -> None:
        """See Watcher."""
        self._line(message)

    def _bar(self, done: float) -> str:
        width = 20
        full = round(done * width)
        return "━" * full + "╌" * (width - full) if self._live else f"{done:4.0%}"

    def _line(self, text: str, *, passing: bool = False) -> None:
        """Write a line; on a terminal the next one overwrites it where it only passes by."""
        if self._live:
            self._stream.write("\r\x1b[2K" + f"{self._label}: {text}" + ("" if passing else "\n"))
        else:
            self._stream.write(f"{self._label}: {text}\n")
        self._stream.flush()


class Several:
    """A Watcher that passes everything on to others."""

    def __init__(self, *others: Watcher) -> None:
        self._others = others

    def joined(self, device: str, count: int, expected: int) -> None:
        """See Watcher."""
        for other in self._others:
            other.joined(device, count, expected)

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""
        for other in self._others:
            other.turned_away(device, message)

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""
        for other in self._others:
            other.round_done(result, of, record)

    def noted(self, message: str) -> None:
        """See Watcher."""
        for other in self._others:
            other.noted(message)
