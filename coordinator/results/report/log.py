"""log.jsonl: the events of a run, one JSON object a line, for scripts and for reading later.

A file that has MOST_BYTES is renamed to log.1.jsonl, in place of the one before, so that a run of years fills no disk.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord

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
        """Append `round`, with the newest accuracies."""
        self._write(
            "round",
            round=result.round,
            of=of,
            contributors=result.contributors,
            bytes_up=result.bytes_up,
            bytes_down=result.bytes_down,
            accuracy=record.newest_accuracies()[1],
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
