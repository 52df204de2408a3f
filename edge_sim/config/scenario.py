"""The section [scenario]: failures of the broker and the coordinator, and the time of the run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated

from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Real, Text
from edge_sim.config.device_conditions import DAY_S, read_time

VirtualSeconds = Annotated[float, Real(0.0, 1e10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTable:
    """The section [scenario], for the memory broker.  Conditions of single devices are keys of [[fleet]]."""

    starts_at: Annotated[str, Text(5)] = "00:00"
    """Time of day at which the run begins."""
    starts_on: Annotated[str, Text(10)] = "2026-01-01"
    """Date on which it begins, for a `federation.window` in a time zone whose clocks change."""
    until_days: Annotated[float, Real(0.001, 10_000.0)] = 60.0
    """Virtual days after which an unfinished run fails, or after which rounds = "forever" end."""
    broker_lost_at_s: tuple[VirtualSeconds, ...] = ()
    """Times at which the broker restarts; every device and the coordinator lose the link."""
    broker_lost_for_s: VirtualSeconds = 10.0
    """Time until the broker is back."""
    coordinator_lost_at_s: tuple[VirtualSeconds, ...] = ()
    """Times at which the coordinator loses its power; it continues from its ledger."""
    coordinator_lost_for_s: VirtualSeconds = 30.0
    """Time until the coordinator is back."""

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for wrong values that the types of the fields allow."""
        read_time(self.starts_at, f"{where}.starts_at")
        self.date(f"{where}.starts_on")
        for key in ("broker_lost_at_s", "coordinator_lost_at_s"):
            for at_s in getattr(self, key):
                if at_s >= self.until_s:
                    raise UsageError(
                        f"{where}.{key}: {at_s:.10g} s never comes, because the run is stopped after "
                        f"{self.until_s:.10g} s (until_days)"
                    )

    @property
    def times(self) -> ScenarioTable:
        """When the run begins and ends, without faults."""
        return ScenarioTable(starts_at=self.starts_at, starts_on=self.starts_on, until_days=self.until_days)

    def date(self, where: str = "scenario.starts_on") -> date:
        """The date on which the run begins.  Raises UsageError."""
        try:
            return date.fromisoformat(self.starts_on)
        except ValueError:
            raise UsageError(f'{where}: expected a date such as "2026-03-01", found {self.starts_on!r}') from None

    @property
    def starts_s(self) -> float:
        """Seconds after midnight at which the run begins."""
        return read_time(self.starts_at, "scenario.starts_at")

    @property
    def until_s(self) -> float:
        """Virtual seconds after which an unfinished run fails."""
        return self.until_days * DAY_S

    @property
    def ending_s(self) -> float:
        """Virtual seconds that a run without an end has for its last round and its closing exchange."""
        return self.until_s + DAY_S


QUIET = ScenarioTable()
