"""Limits the lines that senders who are no part of a federation can cause in its log."""

from __future__ import annotations

FIRST_LINES = 10
"""Lines that may come at once, so that a handful of devices that were set up wrongly are each named."""
EVERY_S = 60.0
"""Seconds after which one more line may come."""


class LineBudget:
    """Lets the first lines through, and after them one a minute, which says how many were left out."""

    def __init__(self) -> None:
        self._left, self._since_s, self._omitted = float(FIRST_LINES), 0.0, 0

    def line(self, text: str, now_s: float) -> str | None:
        """Return the line to write now; None: none."""
        self._left = min(FIRST_LINES, self._left + max(0.0, now_s - self._since_s) / EVERY_S)
        self._since_s = now_s
        if self._left < 1.0:
            self._omitted += 1
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return f"{text} (and {omitted} more such lines since the last one)" if omitted else text
