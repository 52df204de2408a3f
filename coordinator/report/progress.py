"""How a run goes, on the terminal: one live line where there is a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from coordinator.record import Record
from coordinator.report.result import RoundResult
from coordinator.report.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from coordinator.watcher import Watcher

PLAIN_LINES = 10
"""About how many progress lines a log gets, and how many lines on who joined, but that a small fleet is named whole."""
_NAMED = 20
"""Devices of a small fleet."""
_SILENT_S = 60.0
"""A log gets a line at least this often, if anything was done."""


class Progress:
    """A Watcher that tells people.  `brief`: of a run that goes well, a log gets only the last line."""

    def __init__(
        self,
        label: str,
        stream: TextIO | None = None,
        *,
        brief: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._stream, self._brief, self._clock = label, stream or sys.stderr, brief, clock
        self._live = self._stream.isatty()
        self._begun_s = self._told_s = clock()
        self._resumed_at: int | None = None

    def joined(self, device: str, count: int, expected: int) -> None:
        """See Watcher."""
        few = expected <= _NAMED or not count % (expected // PLAIN_LINES) or count == expected
        if self._live or (few and not self._brief):
            self._line(f"{device} joined ({count} of {expected})", passing=True)
        if count == expected:
            self._begun_s = self._clock()

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""
        self._line(f"refused {message}" if device in message else f"refused {device}: {message}")

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""
        last = result.round == of
        if self._resumed_at is None:
            self._resumed_at = result.round - 1
        due = result.round % max(1, of // PLAIN_LINES) == 0 or self._clock() - self._told_s >= _SILENT_S
        if not (self._live or last or (due and not self._brief)):
            return
        elapsed_s = self._clock() - self._begun_s
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
        self._told_s = self._clock()


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
