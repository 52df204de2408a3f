"""One line for each event of a run on the terminal, and log.jsonl: one JSON object for each, for scripts and for later.

A log that has MOST_BYTES is renamed to log.1.jsonl, in place of the one before, so that a run of years fills no disk.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_bytes, human_seconds
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FOREVER

PLAIN_LINES = 10
"""About the number of lines on progress in a log, and of those on joins.  In a small fleet each join has a line."""
_NAMED = 20
"""The most devices of a small fleet."""
_SILENT_S = 60.0
"""A log gets a line at least this often, if a round was done."""


class Progress(RunObserver):
    """An observer that writes lines for people.  `brief`: in a log, only the last line of a run that goes well.

    left: returns the time left in words, where it is that of more than this run.
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None = None,
        *,
        brief: bool = False,
        left: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._stream, self._brief, self._clock = label, stream or sys.stderr, brief, clock
        self._left = left
        self._live = self._stream.isatty()
        self._told_s = clock()
        self._first: tuple[int, float] | None = None
        """The first round that opened since this process began, and when: an estimate counts from it."""
        self._of = FOREVER

    def joined(self, device: str, count: int, expected: int) -> None:
        """Say who joined, or in a log of a large fleet now and then."""
        few = expected <= _NAMED or not count % (expected // PLAIN_LINES) or count == expected
        if self._live or (few and not self._brief):
            self._line(f"{device} joined ({count} of {expected})", passing=True)

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:  # of RunObserver
        """Note when the first round opened, and say that many devices measure what the last one gave."""
        if self._first is None and not at.exchange:
            self._first = at.round, self._clock()
        if at.round == self._of and len(devices) > _NAMED:
            self._line(f"{len(devices):,} devices measure the result", passing=True)

    def turned_away(self, device: str, message: str) -> None:
        """Say who was refused, and why."""
        names_it = re.search(
            rf"(?<![\w-]){re.escape(device)}(?![\w-])", message
        )  # `device-1` must not match `device-10`
        self._line(f"refused {message}" if names_it else f"refused {device}: {message}")

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Say how far the run is, its accuracy and its bytes, and the time left."""
        self._of = of
        last, endless = result.round == of, of == FOREVER
        often = result.round <= PLAIN_LINES if endless else result.round % max(1, of // PLAIN_LINES) == 0
        due = often or self._clock() - self._told_s >= _SILENT_S
        if not (self._live or last or (due and not self._brief)):
            return
        sent = f"{human_bytes(record.bytes_up.total() + record.bytes_down.total())} exchanged"
        words = self._left() if self._left else "" if last or endless else self._left_of_run(result.round, of)
        parts = self._place(result.round, of), _accuracies(record), sent, words
        self._line(", ".join(filter(None, parts)), passing=not last)

    def _left_of_run(self, done: int, of: int) -> str:
        """The time left; empty until a round has begun and ended here: a resumed run first ends an older one."""
        first, begun_s = self._first or (done, 0.0)
        if done <= first:
            return ""
        return f"about {human_seconds((self._clock() - begun_s) / (done - first) * (of - done))} left"

    def noted(self, message: str) -> None:
        """Write the line."""
        self._line(message)

    def _place(self, round_: int, of: int) -> str:
        return f"round {round_}" if of == FOREVER else f"{self._bar(round_ / of)} round {round_}/{of}"

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


def _accuracies(record: RunRecord) -> str:
    """The mean accuracies that were measured last: of the devices' own models, and of a global model."""
    after, found = record.newest_accuracies()
    own = f"{statistics.fmean(found.values()):.1%}" if found else ""
    shared_after = max(filter(record.global_accuracy.get, record.global_accuracy), default=0)
    if not shared_after:
        return own and f"accuracy {own} after round {after}"
    shared = f"global model {statistics.fmean(record.global_accuracy[shared_after].values()):.1%}"
    if not own or after == shared_after:
        return f"{f'own models {own}, ' * bool(own)}{shared} after round {shared_after}"
    return f"own models {own} after round {after}, {shared} after round {shared_after}"


MOST_BYTES = 16 * 1024 * 1024
"""The size at which a file is full: 80,000 rounds of three devices that measure in each tenth."""


class EventLog(RunObserver):
    """An observer that appends every event to a file.  Where the disk refuses a line, that line is missing."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def joined(self, device: str, count: int, expected: int) -> None:
        """Append `joined`."""
        self._write("joined", device=device, count=count, expected=expected)

    def turned_away(self, device: str, message: str) -> None:
        """Append `turned-away`."""
        self._write("turned-away", device=device, message=message)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Append `round`, with the newest accuracies, of round `accuracy_round`; the last ones are in accuracy.csv."""
        accuracy_round, accuracy = record.newest_accuracies()
        self._write(
            "round",
            round=result.round,
            of=of,
            contributors=result.contributors,
            bytes_up=result.bytes_up,
            bytes_down=result.bytes_down,
            accuracy_round=accuracy_round,
            accuracy=accuracy,
        )

    def noted(self, message: str) -> None:
        """Append `note`."""
        self._write("note", message=message)

    def _write(self, event: str, **fields: Any) -> None:
        with suppress(OSError):
            with open(self._path, "a", encoding="utf-8", opener=_opened) as file:  # Path has no opener
                file.write(json.dumps({"time_s": round(time.time(), 3), "event": event, **fields}) + "\n")
                full = file.tell() >= MOST_BYTES
            if full:
                self._path.replace(self._path.with_suffix(".1.jsonl"))


def _opened(path: str, flags: int) -> int:
    """Open a file to write, without waiting for a reader where it is a pipe: this is an OSError then."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
