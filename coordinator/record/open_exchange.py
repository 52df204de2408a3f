"""The exchange that is open, as values for those who watch a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExchange:
    """What a run is doing: the exchange that is open, who has answered, and who holds it up."""

    line: str
    """One line about it all."""
    doing: str
    phase: str
    round: int
    """From 1."""
    exchange: int
    """From 1."""
    exchanges: int
    """How many there are in a round."""
    closing: bool
    expected: int
    here: int
    invited: int
    answered: int
    needed: int
    """The number of uploads that it needs to close: the quorum."""
    awaited: tuple[str, ...]
    held: tuple[str, ...]
    """Invited devices that declined, or that withheld their upload."""
    due_s: float | None
    """The deadline, on the coordinator's clock, or None if none is set."""
    misses: int
    patience: int
