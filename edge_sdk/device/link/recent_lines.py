"""The last lines that a device has printed for its owner, which an operator may request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from edge_sdk.device.exchange import RoundReport
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import MAX_LOG_LINES

STAMP = "%Y-%m-%d %H:%M:%SZ"


class RecentLines:
    """Keeps the last MAX_LOG_LINES lines, each with the time in UTC, and nothing else."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: returns seconds since 1970."""
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def add(self, line: str) -> None:
        """Keep a line; beyond MAX_LOG_LINES the oldest is dropped."""
        stamp = time.strftime(STAMP, time.gmtime(self._clock()))
        self._lines.append(one_line(f"{stamp} {line}"))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the oldest first."""
        return tuple(self._lines)


def round_lines(report: RoundReport) -> list[str]:
    """Return the lines that a device prints after an exchange: the measured accuracies."""
    lines = []
    if "accuracy" in report.personal_metrics:
        own = report.personal_metrics["accuracy"]
        lines.append(f"round {report.personal_round}, accuracy {own:.1%} of its own model after training")
    if "accuracy" in report.metrics:
        which = " of the global model" if report.global_model else ""
        lines.append(f"round {report.metrics_round}, accuracy {report.metrics['accuracy']:.1%}{which}")
    return lines
