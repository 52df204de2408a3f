"""Virtual time: a queue of things to do, in order of time and then of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualClock:
    """Seconds that pass only when something happens."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a later time; never before now."""
        self._asked += 1
        heapq.heappush(self._queue, (max(time_s, self.now_s), self._asked, act))

    def step(self) -> bool:
        """Go to the next thing and do it; False: nothing is left to happen."""
        if not self._queue:
            return False
        self.now_s, _, act = heapq.heappop(self._queue)
        act()
        return True
