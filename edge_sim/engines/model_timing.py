"""The times that the calibration of `engine = "auto"` measures for each kind of model."""

from __future__ import annotations

from dataclasses import dataclass

_WORTH_STACKING = 0.8
"""Stacking is chosen when it takes less than this share of the time that devices take one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTiming:
    """Milliseconds that one round's training of one device takes on this machine, for one kind of model."""

    model: str
    devices: int
    """Number of devices in the fleet that have this kind of model."""
    alone_ms: float
    stacked_ms: float | None
    """None: models of this kind cannot be stacked."""

    @property
    def stacks(self) -> bool:
        """Whether stacking is clearly faster."""
        return self.stacked_ms is not None and self.stacked_ms < _WORTH_STACKING * self.alone_ms

    @property
    def best_ms(self) -> float:
        """Time of the faster way."""
        return self.stacked_ms if self.stacks and self.stacked_ms is not None else self.alone_ms

    def __str__(self) -> str:
        also = "" if self.stacked_ms is None else f", {self.stacked_ms:.2f} ms stacked"
        return f"{self.model} {self.alone_ms:.2f} ms a device and round{also}"
