"""The progress of a run as JSON lines on a stream, for systems that collect logs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TextIO

from coordinator.record.observer import RunObserver
from coordinator.record.result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.writers.figures import round_figures


class JsonLines(RunObserver):
    """Writes one object a line: time_s, level, event, federation, part, and what the event tells."""

    def __init__(self, federation: str, part: str, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._about = {"federation": federation, "part": part}
        self._stream, self._clock = stream, clock

    def joined(self, device: str, count: int, expected: int) -> None:
        """Write `joined`."""
        self._write("info", "joined", device=device, count=count, expected=expected)

    def turned_away(self, device: str, message: str) -> None:
        """Write `turned-away`."""
        self._write("warning", "turned-away", device=device, message=message)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Write `round`."""
        self._write("info", "round", round=result.round, of=of, **round_figures(result, record))

    def noted(self, message: str) -> None:
        """Write `note`."""
        self._write("warning", "note", message=message)

    def _write(self, level: str, event: str, **fields: Any) -> None:
        line = {"time_s": round(self._clock(), 3), "level": level, "event": event, **self._about, **fields}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()
