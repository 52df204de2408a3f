"""The pause after failed training, which grows with each failure until a round succeeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""The pause after the second failure in a row, and the maximum.  The first failure causes no pause."""


@dataclass
class Backoff:
    """Counts the failures in a row."""

    failures: int = 0
    until_s: float = -math.inf
    """When the pause ends, in seconds of the driver's clock, which may be negative."""

    def failed(self, now_s: float) -> None:
        """Note a failure; from the second on, begin a pause."""
        self.failures += 1
        if self.failures > 1:
            self.until_s = now_s + self.pause_s

    @property
    def pause_s(self) -> float:
        """The length of the pause after the current number of failures, in seconds."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self.failures - 2, 16), LONGEST_PAUSE_S) if self.failures > 1 else 0.0

    def succeeded(self) -> None:
        """Note a success: the next failure counts as the first."""
        self.failures, self.until_s = 0, -math.inf

    def left_s(self, now_s: float) -> float:
        """Return the rest of the pause in seconds."""
        return max(0.0, self.until_s - now_s)
