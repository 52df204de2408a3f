"""log.jsonl: what happened in a run, one JSON object a line, for scripts and for the day after."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.report.result import RoundResult

if TYPE_CHECKING:  # the record imports results, too
    from coordinator.record import Record


class Log:
    """A Watcher that writes down what it sees.  A disk that will not have a line ends no run: that line is missing."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def joined(self, device: str, count: int, expected: int) -> None:
        """See Watcher."""
        self._write("joined", device=device, count=count, expected=expected)

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""
        self._write("turned-away", device=device, message=message)

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""
        measured = record.accuracy.get(max(record.accuracy), {}) if record.accuracy else {}
        self._write(
            "round",
            round=result.round,
            of=of,
            contributors=result.contributors,
            bytes_up=result.bytes_up,
            bytes_down=result.bytes_down,
            accuracy=measured,
        )

    def noted(self, message: str) -> None:
        """See Watcher."""
        self._write("note", message=message)

    def _write(self, event: str, **fields: Any) -> None:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time_s": round(time.time(), 3), "event": event, **fields}) + "\n")
