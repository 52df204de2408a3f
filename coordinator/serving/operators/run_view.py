"""Answers observers' questions about a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.record.open_exchange import OpenExchange
from coordinator.record.run_record import RunRecord
from coordinator.serving.operators.device_report import DeviceReport
from edge_sdk.protocol.messages import DeviceEntry


@dataclass(frozen=True, slots=True)
class ServerView:
    """Answers from the server's own parts, as a RunView."""

    record: RunRecord
    now_s: Callable[[], float]
    report: DeviceReport
    operate: Callable[[str, str | None], tuple[bool, str]]

    def devices(self) -> list[str]:
        """Return the ids of all devices that are known, sorted."""
        return self.report.devices()

    def entries(self, devices: Iterable[str]) -> list[DeviceEntry]:
        """Describe these devices."""
        now_s = self.now_s()
        return [self.report.entry(name, now_s) for name in devices]

    def exchange(self) -> OpenExchange:
        """Return the exchange that is open."""
        return self.report.exchange()
