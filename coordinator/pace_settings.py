"""Reads the pace of rounds from [federation]: durations, hours and the time zone, each mistake in one line."""

from __future__ import annotations

import re
from typing import Protocol
from zoneinfo import ZoneInfoNotFoundError

from coordinator.record.units import human_seconds
from coordinator.rounds.pace import DAY_MINUTES, UTC, OpenHours, RoundPace
from edge_sdk.errors import UsageError
from edge_sdk.protocol.messages import FOREVER

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24):(00))")
LEAST_ROUND_BYTES = 400
"""A device's Assign, Upload and Receipt of one round, without any knowledge in them."""
LONGEST_EVERY_S = 366 * UNITS["d"]


class PaceTable(Protocol):
    """The keys of [federation] that make up a pace."""

    @property
    def every(self) -> str | None:
        """A duration."""

    @property
    def window(self) -> str | None:
        """Hours of the day."""

    @property
    def time_zone(self) -> str | None:
        """The name of a time zone."""

    @property
    def bytes_per_day(self) -> int | None:
        """A number of bytes."""

    @property
    def joules_per_day(self) -> float | None:
        """A number of joules."""

    @property
    def quorum(self) -> int | None:
        """How many devices a round needs, or None if all that it asks."""

    @property
    def asked(self) -> int:
        """How many devices a round asks."""


def read_duration(text: str, where: str) -> float:
    """Read 90s, 30min, 1h or 7d as seconds.  Raises UsageError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f'{where}: expected a duration such as "30min", "1h" or "7d", found {text!r}')
    return float(found[1]) * UNITS[found[2]]


def read_hours(text: str, where: str) -> OpenHours:
    """Read HH:MM-HH:MM, which may span midnight or end at 24:00.  Raises UsageError."""
    found = _HOURS.fullmatch(text)
    if found is None:
        raise UsageError(f'{where}: expected two times of day such as "22:00-06:00", found {text!r}')
    opens_h, opens_m, closes_h, closes_m = (int(each) for each in found.groups() if each is not None)
    hours = OpenHours(60 * opens_h + opens_m, 60 * closes_h + closes_m)
    if (hours.opens - hours.closes) % DAY_MINUTES == 0 and (hours.opens, hours.closes) != (0, DAY_MINUTES):
        raise UsageError(f"{where}: closes when it opens, {text!r}, so no round would open; leave it out for all hours")
    return hours


def read_pace(table: PaceTable, where: str) -> RoundPace:
    """Read the pace that [federation] asks for.  where: the file and section, for messages.  Raises UsageError."""
    every_s = 0.0 if table.every is None else read_duration(table.every, f"{where}.every")
    if table.every is not None and not 1.0 <= every_s <= LONGEST_EVERY_S:
        raise UsageError(f'{where}.every: expected "1s" to "366d", found {table.every!r}')
    hours = None if table.window is None else read_hours(table.window, f"{where}.window")
    pace = RoundPace(
        every_s=every_s,
        hours=hours if hours is None or hours.closes - hours.opens != DAY_MINUTES else None,
        zone=table.time_zone or UTC,
        bytes_per_day=table.bytes_per_day or 0,
        joules_per_day=table.joules_per_day or 0.0,
    )
    needed = table.quorum or table.asked
    least = LEAST_ROUND_BYTES * needed
    if 0 < pace.bytes_per_day < least:
        raise UsageError(
            f"{where}.bytes_per_day: a round of {needed} device{'s' * (needed != 1)} needs {least} bytes without any "
            f"knowledge, found {pace.bytes_per_day}; give {least} and the bytes of your model, for each round of a day"
        )
    try:
        zone_known = pace.tz is not None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone_known = False
    if not zone_known:
        raise UsageError(
            f'{where}.time_zone: expected a name such as "Europe/Berlin" that this machine knows, found '
            f"{table.time_zone!r}; where it knows none, pip install tzdata"
        )
    if table.time_zone is not None and hours is None and not (pace.bytes_per_day or pace.joules_per_day):
        raise UsageError(f"{where}.time_zone: has no effect without window, bytes_per_day or joules_per_day")
    return pace


def rounds_of(plain: object) -> object:
    """Return the number of rounds that `rounds = "forever"` stands for, and any other value as it is."""
    return FOREVER if plain == "forever" else plain


def words_of(pace: RoundPace) -> str:
    """Describe a pace in a line, or return an empty text without one."""
    found = [f"at least {human_seconds(pace.every_s)} apart"] if pace.every_s else []
    found += [f"within {pace.hours} ({pace.zone})"] if pace.hours is not None else []
    found += [f"until {pace.bytes_per_day} bytes a day ({pace.zone}) are spent"] if pace.bytes_per_day else []
    found += [f"until {pace.joules_per_day:g} J a day ({pace.zone}) are spent"] if pace.joules_per_day else []
    return f"rounds open {', '.join(found)}" if found else ""
