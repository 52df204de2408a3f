"""How much is computed between two pauses, in which a device looks for news, heat and an owner who wants it to stop."""

from __future__ import annotations

BETWEEN_PAUSES_S = 0.05
"""Seconds of training between two pauses, unless a single step takes longer."""


class FitPace:
    """Measures the steps of fits, and tells how many make up the time between two pauses."""

    def __init__(self) -> None:
        self.steps = 1
        """How many steps to take before the next pause; results do not depend on it."""

    def took(self, steps: int, seconds: float) -> None:
        """Take note of how long this number of steps took."""
        self.steps = max(1, int(BETWEEN_PAUSES_S / max(seconds / steps, 1e-9)))
