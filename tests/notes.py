"""What a coordinator says to whoever watches it."""

from __future__ import annotations

from coordinator.record.observer import RunObserver


class Notes(RunObserver):
    """Keeps each line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def noted(self, message: str) -> None:
        self.lines.append(message)
