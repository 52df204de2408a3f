"""When a round may open: pauses between rounds, hours of the day, and budgets of a day.

Pure: every function gets the time, in seconds since 1970.  Hours and days are those of a stated time zone, so they
follow its clock changes: no window opens in an hour that a change skips, and an hour that it repeats counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAY_MINUTES = 24 * 60
UTC = "UTC"


@dataclass(frozen=True, slots=True)
class OpenHours:
    """Hours of each day in which rounds open, as minutes after midnight; they may span midnight."""

    opens: int
    closes: int

    def __str__(self) -> str:
        return f"{_clock(self.opens)}-{_clock(self.closes)}"

    def earlier(self, seconds: int) -> OpenHours:
        """The same hours on a clock that is this far behind."""
        return OpenHours((self.opens - seconds // 60) % DAY_MINUTES, (self.closes - seconds // 60) % DAY_MINUTES)

    def hold(self, minute: float) -> bool:
        """Whether the hours include this minute of the day."""
        return (minute - self.opens) % DAY_MINUTES < (self.closes - self.opens) % DAY_MINUTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPace:
    """The conditions under which a round opens; none by default."""

    every_s: float = 0.0
    """Minimum seconds between the openings of two rounds."""
    hours: OpenHours | None = None
    """The hours in which rounds open, or None for all hours.  An open round may end after them."""
    zone: str = UTC
    """The time zone of hours and days."""
    bytes_per_day: int = 0
    """After the round in which the bytes of all devices reach this, no round opens until the next day; 0 for no
    limit."""
    joules_per_day: float = 0.0
    """The same for the joules of all devices."""

    @property
    def unlimited(self) -> bool:
        """Whether rounds follow one another at once."""
        return self == RoundPace(zone=self.zone)

    @property
    def rounds_per_day(self) -> float:
        """The number of rounds that can open on a day of 24 hours, by `every` and the hours; 0 without `every`."""
        open_s = 86_400.0 if self.hours is None else (self.hours.closes - self.hours.opens) % DAY_MINUTES * 60.0
        return max(1.0, open_s // self.every_s) if self.every_s else 0.0

    @property
    def tz(self) -> tzinfo:
        """The time zone.  Raises ZoneInfoNotFoundError, ValueError or OSError if this machine does not know it."""
        return timezone.utc if self.zone == UTC else ZoneInfo(self.zone)

    def day(self, at_s: float) -> date:
        """The date at this time."""
        return datetime.fromtimestamp(at_s, self.tz).date()

    def offset_s(self, at_s: float) -> int:
        """The offset of the time zone's clock from UTC at this time, in seconds."""
        ahead = datetime.fromtimestamp(at_s, self.tz).utcoffset()
        return 0 if ahead is None else round(ahead.total_seconds())

    def says(self, at_s: float) -> str:
        """The time in words, such as `22:00 on 2026-03-01 (Europe/Berlin)`."""
        return datetime.fromtimestamp(at_s, self.tz).strftime("%H:%M on %Y-%m-%d") + f" ({self.zone})"


class DaySpent(NamedTuple):
    """The bytes and joules that all devices have spent since the day began."""

    octets: int = 0
    """Bytes, both ways."""
    joules: float = 0.0


NO_LIMIT = RoundPace()


class Opening(NamedTuple):
    """The earliest time at which a round may open."""

    at_s: float
    why: str
    """The reason for waiting; empty if at once."""


def next_opening(pace: RoundPace, now_s: float, last_s: float | None, spent: DaySpent) -> Opening:
    """When the next round may open.  last_s: when the last one opened; spent: on the day of `now_s`.

    A clock that was set back delays a round by at most `every_s`.
    """
    at_s, why = now_s, ""
    if last_s is not None and min(last_s, now_s) + pace.every_s > at_s:
        at_s, why = min(last_s, now_s) + pace.every_s, "federation.every"
    if reason := _over_budget(pace, spent):
        midnight_s = _midnight_after(pace, now_s)
        if midnight_s > at_s:
            at_s, why = midnight_s, reason
    if pace.hours is not None:
        open_s = _open_from(pace, pace.hours, at_s)
        if open_s > at_s:
            at_s, why = open_s, f"federation.window is {pace.hours} ({pace.zone})"
    return Opening(at_s, why)


def _over_budget(pace: RoundPace, spent: DaySpent) -> str:
    if pace.bytes_per_day and spent.octets >= pace.bytes_per_day:
        return f"{spent.octets} bytes were spent today, federation.bytes_per_day is {pace.bytes_per_day}"
    if pace.joules_per_day and spent.joules >= pace.joules_per_day:
        return f"{spent.joules:.0f} J were spent today, federation.joules_per_day is {pace.joules_per_day:g}"
    return ""


def _midnight_after(pace: RoundPace, at_s: float) -> float:
    return datetime.combine(pace.day(at_s) + timedelta(days=1), time(), pace.tz).timestamp()


def _open_from(pace: RoundPace, hours: OpenHours, at_s: float) -> float:
    """Return the first time from `at_s` on that is within the hours."""
    if _holds(pace, hours, at_s):
        return at_s
    day = pace.day(at_s)
    for each in range(4):  # a clock change can leave out one day's hours
        local = datetime.combine(day + timedelta(days=each), time(hours.opens // 60, hours.opens % 60), pace.tz)
        earlier_s, later_s = sorted((local.timestamp(), local.replace(fold=1).timestamp()))
        for opens_s in (earlier_s, later_s):
            if opens_s >= at_s and _holds(pace, hours, opens_s):
                # the clock jumps over the opening: it is at the jump, between the two readings of that time
                return opens_s if opens_s == earlier_s else _first(pace, hours, max(at_s, earlier_s), opens_s)
    raise AssertionError("hours that open every day open within four days")


def _first(pace: RoundPace, hours: OpenHours, closed_s: float, open_s: float) -> float:
    """Return the first time in seconds within the hours; one time is outside of them, and a later one inside."""
    while open_s - closed_s > 1.0:
        middle_s = (closed_s + open_s) // 2
        closed_s, open_s = (closed_s, middle_s) if _holds(pace, hours, middle_s) else (middle_s, open_s)
    return open_s


def _holds(pace: RoundPace, hours: OpenHours, at_s: float) -> bool:
    local = datetime.fromtimestamp(at_s, pace.tz)
    return hours.hold(local.hour * 60 + local.minute + local.second / 60)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
