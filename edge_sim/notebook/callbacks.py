"""Callbacks of a run: functions that are called after each round, and when a device joins or is turned away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class RoundNews:
    """What `on_round` is called with."""

    round: int
    of: int
    part: str
    """Empty for the federation; `alone` while the devices train alone for the comparison."""
    accuracy: Mapping[str, float]
    """The newest accuracy of each device that was measured so far, by device id."""
    measured: int
    """The number of rounds after which the newest of them was measured."""
    result: RoundResult
    """The round's bytes, seconds, joules and contributors; its accuracies may come later and are not in it."""


@dataclass(frozen=True, slots=True)
class DeviceNews:
    """What `on_device` is called with."""

    device: str
    part: str
    count: int
    """How many devices have joined so far, of `expected`; 0 for one that was turned away."""
    expected: int
    refusal: str = ""
    """Why it was turned away; empty: it joined."""


class CallbackObserver(RunObserver):
    """Calls functions on the events of one part of a run."""

    def __init__(
        self,
        part: str,
        on_round: Callable[[RoundNews], object] | None,
        on_device: Callable[[DeviceNews], object] | None,
    ) -> None:
        self._part, self._on_round, self._on_device = part, on_round, on_device

    def joined(self, device: str, count: int, expected: int) -> None:
        """Call `on_device`."""
        if self._on_device is not None:
            self._on_device(DeviceNews(device, self._part, count, expected))

    def turned_away(self, device: str, message: str) -> None:
        """Call `on_device`."""
        if self._on_device is not None:
            self._on_device(DeviceNews(device, self._part, 0, 0, message))

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Call `on_round`."""
        if self._on_round is not None:
            measured, accuracy = max(record.accuracy, default=0), record.newest_of_each()
            self._on_round(RoundNews(result.round, of, self._part, accuracy, measured, result))
