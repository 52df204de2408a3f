"""Virtual time: a queue of things to do, in order of time and then of asking; and clocks that show it wrongly."""

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

    def at(self, time_s: float, act: Callable[[], None], place: int | None = None) -> None:
        """Do something at a later time; never before now.  place: one that was kept for it."""
        heapq.heappush(self._queue, (max(time_s, self.now_s), self.place() if place is None else place, act))

    def place(self) -> int:
        """Keep a place among the things of one time, for one whose time is not known yet."""
        self._asked += 1
        return self._asked

    @property
    def next_s(self) -> float:
        """When the next thing happens; infinity: never."""
        return self._queue[0][0] if self._queue else math.inf

    def step(self) -> bool:
        """Go to the next thing and do it; False: nothing is left to happen."""
        if not self._queue:
            return False
        self.now_s, _, act = heapq.heappop(self._queue)
        act()
        return True


class LocalClock:
    """What a device's own clock shows: offset + (1 + drift) * virtual time."""

    def __init__(self, clock: VirtualClock, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self._clock, self._offset_s, self._rate = clock, offset_s, 1.0 + drift

    @property
    def now_s(self) -> float:
        """Its time now."""
        return self._at(self._clock.now_s)

    def true_s(self, local_s: float) -> float:
        """The first virtual time at which it shows so much: rounding must never make an alarm ring too early."""
        time_s = (local_s - self._offset_s) / self._rate
        step_s = math.ulp(max(abs(local_s), abs(time_s), 1.0))
        while self._at(time_s) < local_s:
            time_s += step_s
            step_s *= 2
        return time_s

    def _at(self, time_s: float) -> float:
        return self._offset_s + self._rate * time_s
