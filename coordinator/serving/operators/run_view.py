"""Answers observers' questions about a run."""

from __future__ import annotations

from collections.abc import Callable
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

    def entries(self) -> list[DeviceEntry]:
        """Return all devices that are known, sorted by id."""
        now_s = self.now_s()
        return [self.report.entry(name, now_s) for name in self.report.devices()]

    def exchange(self) -> OpenExchange:
        """Return the exchange that is open."""
        return self.report.exchange()
