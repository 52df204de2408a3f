"""Who looks on while a federation runs."""

from __future__ import annotations

from typing import Protocol

from coordinator.record import Record
from coordinator.report.result import RoundResult


class Watcher(Protocol):
    """Somebody who wants to see how it goes."""

    def joined(self, device: str, count: int, expected: int) -> None:
        """A device was taken in."""

    def turned_away(self, device: str, message: str) -> None:
        """A device was refused."""

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """A round is complete."""

    def noted(self, message: str) -> None:
        """Something worth a line: the broker lost, a warning."""


class Silent:
    """A watcher that looks away."""

    def joined(self, device: str, count: int, expected: int) -> None:
        """See Watcher."""

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""

    def noted(self, message: str) -> None:
        """See Watcher."""
