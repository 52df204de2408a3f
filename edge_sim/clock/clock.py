"""Virtual time: a queue of events, ordered by time and then by request, and local clocks with an error."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class VirtualClock:
    """Seconds that pass only when something happens."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self._exact = LocalClock(self)

    def at(self, time_s: float, act: Callable[[], None], place: int | None = None) -> None:
        """Schedule a call at a time that is not in the past.  place: its reserved place in the order of that time."""
        if place is None:
            self._asked = place = self._asked + 1
        heapq.heappush(self._queue, (max(time_s, self.now_s), place, act))

    def place(self, count: int = 1) -> int:
        """Reserve a place in the order of events at one time, for an event whose time is not known yet.

        count: number of consecutive places; returns the first one.
        """
        first = self._asked + 1
        self._asked += count
        return first

    def local(self, offset_s: float, drift: float) -> LocalClock:
        """Return a device's clock; those without an error are one object."""
        return LocalClock(self, offset_s=offset_s, drift=drift) if offset_s or drift else self._exact

    @property
    def next_s(self) -> float:
        """Time of the next event, or infinity without one."""
        return self._queue[0][0] if self._queue else math.inf

    def step(self) -> bool:
        """Advance to the next event and carry it out; returns False without one."""
        if not self._queue:
            return False
        self.now_s, _, act = heapq.heappop(self._queue)
        act()
        return True


class LocalClock:
    """A device's own clock, which shows offset + (1 + drift) * virtual time."""

    def __init__(self, clock: VirtualClock, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self._clock, self._offset_s, self._rate = clock, offset_s, 1.0 + drift

    @property
    def now_s(self) -> float:
        """The time that the clock shows now."""
        return self._offset_s + self._rate * self._clock.now_s

    def true_s(self, local_s: float) -> float:
        """Return the first virtual time at which the clock shows `local_s`: rounding never makes an alarm early."""
        offset_s, rate = self._offset_s, self._rate
        time_s = (local_s - offset_s) / rate
        step_s = math.ulp(max(abs(local_s), abs(time_s), 1.0))
        while offset_s + rate * time_s < local_s:
            time_s += step_s
            step_s *= 2
        return time_s
