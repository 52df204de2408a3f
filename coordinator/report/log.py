"""log.jsonl: the events of a run, one JSON object a line, for scripts and for reading later."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinator.record.observer import RunObserver
from coordinator.record.result import RoundResult
from coordinator.record.run_record import RunRecord

MOST_BYTES = 16 * 1024 * 1024
"""When the file is this large, it becomes log.old.jsonl, in place of an earlier one: a service runs for years."""


class EventLog(RunObserver):
    """An observer that appends every event to a file.  Where the disk refuses a line, that line is missing."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._most_bytes = path, most_bytes

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
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time_s": round(time.time(), 3), "event": event, **fields}) + "\n")
            if file.tell() > self._most_bytes:
                self._path.replace(self._path.with_name(f"{self._path.stem}.old{self._path.suffix}"))
