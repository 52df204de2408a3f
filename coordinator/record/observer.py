"""Observers of a run, which receive its events while a federation runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from coordinator.record.round_result import OpenExchange, RoundResult
from coordinator.record.run_record import RunRecord
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.operator_messages import DeviceEntry

BoardFigures: TypeAlias = Callable[[Collection[str]], Mapping[str, Mapping[str, float]]]
"""Returns, of these devices, by device what its simulated board has come to: busy_s, air_s (sending and receiving),
energy_j, and where it has a limit heat, as a share of that at which it slows down."""


class RunView(Protocol):
    """A coordinator's view of its run, to be read only by the run's own thread."""

    @property
    def record(self) -> RunRecord:
        """The record of the run."""

    def now_s(self) -> float:
        """Return the time on the coordinator's clock, in seconds."""

    def devices(self) -> list[str]:
        """Return the ids of all devices that are known, sorted."""

    def entries(self, devices: Iterable[str]) -> list[DeviceEntry]:
        """Describe these devices."""

    def exchange(self) -> OpenExchange:
        """Return the exchange that is open, and what the run is doing."""

    @property
    def operate(self) -> Callable[[str, str | None], tuple[bool, str]]:
        """Carries out a command, such as pause, for a device or the run; returns whether, and a line about it."""


class RunEnded(Exception):
    """An observer's `round_done` raises it to end a simulation after that round; its text is the result's reason."""


class RunObserver:
    """Receives the events of a run.  Every method does nothing here: an observer overrides those that it needs."""

    def begun(self, view: RunView) -> None:
        """A coordinator has started, for the first time or again, and can be asked."""

    def simulated(self, boards: BoardFigures) -> None:
        """A simulation has begun, and can be asked what its boards do."""

    def joined(self, device: str, count: int, expected: int) -> None:
        """A device was admitted, the `count`-th of `expected`."""

    def turned_away(self, device: str, message: str) -> None:
        """A device was refused."""

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:
        """An exchange opens for these devices; others may follow."""

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """A round is complete; the run has `of` rounds."""

    def noted(self, message: str) -> None:
        """Something is worth a line of text, such as a lost broker or a warning."""

    def waited(self, record: RunRecord) -> None:
        """A moment has passed, with or without other events; called in each turn of the coordinator's loop."""


class ObserverGroup(RunObserver):
    """Passes every event on to several observers."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def begun(self, view: RunView) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.begun(view)

    def simulated(self, boards: BoardFigures) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.simulated(boards)

    def joined(self, device: str, count: int, expected: int) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.joined(device, count, expected)

    def turned_away(self, device: str, message: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.turned_away(device, message)

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.opened(at, devices)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.round_done(result, of, record)

    def noted(self, message: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.noted(message)

    def waited(self, record: RunRecord) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.waited(record)
