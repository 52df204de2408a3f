"""The dates of a simulation: virtual time begins on the date and at the time of day that [scenario] names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timezone

from coordinator.serving.round_pacing import Timetable
from edge_sim.fleet.fleet import Fleet


def timetable(fleet: Fleet, now_s: Callable[[], float]) -> Timetable:
    """When rounds open in virtual time; rounds without an end stop after scenario.until_days.

    now_s: returns the virtual time in seconds.
    """
    federation, scenario = fleet.federation, fleet.scenario
    begins_s = datetime.combine(scenario.date(), time(), federation.pace.tz).timestamp() + scenario.starts_s
    ends_s = begins_s + scenario.until_s if federation.policy.forever else None
    return Timetable(pace=federation.pace, wall=lambda: begins_s + now_s(), ends_s=ends_s)


def real_timetable(fleet: Fleet) -> Timetable:
    """The same in real time, from now on."""
    ends_s = (
        datetime.now(timezone.utc).timestamp() + fleet.scenario.until_s if fleet.federation.policy.forever else None
    )
    return Timetable(pace=fleet.federation.pace, ends_s=ends_s)
