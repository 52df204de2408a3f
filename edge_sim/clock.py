"""Virtual time: a queue of things to do, in order of time and then of asking."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class VirtualClock:
    """Seconds that pass only when something happens."""

    def __init__(self) -> None:
        self.now_s = 0.0
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
