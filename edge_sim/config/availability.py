"""Daily windows in which a device is switched on, such as "22:00-06:00" in virtual time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from edge_sdk.errors import UsageError

DAY_S = 86_400.0
_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_MIDNIGHT = "24:00"
"""Another way to write midnight as the end of a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """A daily window from `opens_s` to `closes_s`, in seconds after midnight; it may span midnight."""

    opens_s: float
    closes_s: float

    def holds(self, day_s: float) -> bool:
        """Whether the window is open at this time.  day_s: seconds since any midnight."""
        return (day_s - self.opens_s) % DAY_S < self.length_s

    def next_edge(self, now_s: float, starts_s: float) -> tuple[float, bool]:
        """Return the first time after `now_s` at which the window opens (True) or closes (False).

        Time 0 is `starts_s` after midnight.  Each edge is computed from midnight, not from the previous edge, so
        that rounding cannot return the same edge twice.
        """
        edges = ((self.opens_s, True), (self.closes_s, False))
        return min(
            (edge_s - starts_s + self._days(now_s + starts_s - edge_s) * DAY_S, opens) for edge_s, opens in edges
        )

    @staticmethod
    def _days(since_s: float) -> int:
        """Return the number of days from a first edge, `since_s` seconds ago, to the next edge."""
        return math.floor(since_s / DAY_S) + 1

    @property
    def length_s(self) -> float:
        """Seconds for which the window is open each day."""
        return (self.closes_s - self.opens_s) % DAY_S


def read_time(text: str, where: str) -> float:
    """Read HH:MM and return seconds after midnight.  Raises UsageError."""
    found = re.fullmatch(_TIME, text)
    if found is None:
        raise UsageError(f'{where}: expected a time of day such as "22:00", found {text!r}')
    return 3600.0 * int(found[1]) + 60.0 * int(found[2])


def read_window(text: str, where: str) -> Window:
    """Read a window written as HH:MM-HH:MM; it may end at 24:00.  Raises UsageError."""
    opens, _, closes = text.partition("-")
    if re.fullmatch(rf"{_TIME}-({_TIME}|{_MIDNIGHT})", text) is None:
        raise UsageError(f'{where}: expected two times of day such as "22:00-06:00", found {text!r}')
    window = Window(read_time(opens, where), DAY_S if closes == _MIDNIGHT else read_time(closes, where))
    if not window.length_s:
        raise UsageError(f"{where}: opens when it closes, {text!r}; leave it out for devices that are always on")
    return window
