"""How long a device computes nothing after its training has failed: longer each time, until a round succeeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""The pause after the second failure in a row, and the longest one; after the first failure there is none."""


@dataclass
class Backoff:
    """Counts the failures in a row."""

    failures: int = 0
    until_s: float = -math.inf
    """When the pause ends, in seconds of the driver's clock, which may be negative."""

    def failed(self, now_s: float) -> None:
        """Note a failure: the pause after the second is 5 s long, and doubles up to 300 s."""
        self.failures += 1
        if self.failures > 1:
            self.until_s = now_s + self.pause_s

    @property
    def pause_s(self) -> float:
        """The length of the pause after the present number of failures, in seconds."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self.failures - 2, 16), LONGEST_PAUSE_S) if self.failures > 1 else 0.0

    def succeeded(self) -> None:
        """Note a success: the next failure counts as the first."""
        self.failures, self.until_s = 0, -math.inf

    def left_s(self, now_s: float) -> float:
        """Return the seconds that are left of the pause."""
        return max(0.0, self.until_s - now_s)
