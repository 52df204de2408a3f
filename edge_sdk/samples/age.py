"""The age of samples, although a device's clock may be wrong, be set, or stand still while the device is off."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any

STEP_S = 60.0
"""If a clock is further ahead than this, it was set, or the device slept or was off."""
SETTLED_S = 3600.0
"""While the device runs, such a step counts only after this time, because a mistake is corrected sooner."""
SET_FROM_S = 1_704_067_200.0
"""1 January 2024: a clock before this was never set."""
MARKS = 100
"""The age is known to this share of the maximum age."""


class SampleAges:
    """Counts lived seconds: those while the device runs, and those while it is off, by the wall clock.

    Samples are numbered in the order in which they come, so a few marks (number, lived seconds) tell the age of all.
    """

    def __init__(
        self, max_age_s: float, clock: Callable[[], float], wall: Callable[[], float], known: Mapping[str, Any]
    ) -> None:
        """clock: returns monotonic seconds.  wall: returns seconds since 1970.  known: what an earlier start saved."""
        self._max_age_s, self._clock, self._wall = max_age_s, clock, wall
        self._lived_s, self._at_s = float(known.get("lived_s", 0.0)), clock()
        anchor = known.get("anchor")
        self._anchor: tuple[float, float] | None = (float(anchor[0]), float(anchor[1])) if anchor else None
        """Lived seconds and the wall clock at one moment."""
        self._marks = list[tuple[int, float]]()
        for key, at_s in known.get("marks", ()):
            if self._is_apart(at_s):
                self._marks.append((int(key), float(at_s)))
        self._own = len(self._marks)
        """The index of the first mark of this start."""
        self.stepped = False
        """Whether a step of the wall clock counts that is not saved yet."""
        self._ahead: tuple[float, float] | None = None
        """A step of the wall clock that does not count yet, and when it was first seen, in lived seconds."""
        if (step_s := self._step_s()) > 0.0:  # the device was off
            self._believe(step_s)

    def to_json(self) -> dict[str, Any]:
        """All of this as plain values, to be saved."""
        self.stepped = False
        return {"lived_s": self._now_s(), "anchor": self._anchor, "marks": self._marks}

    def came(self, key: int) -> bool:
        """Record that the sample with this number has come; returns whether that began a new mark.

        The first sample of a start begins one, because the time off may become known only later.
        """
        now_s = self._now_s()
        if self._own < len(self._marks) and not self._is_apart(now_s):
            return False
        self._marks.append((key, now_s))
        return True

    def oldest(self, following: int) -> int:
        """Return the number of the oldest sample that is young enough; following: that of the next sample to come."""
        self._look()
        found = bisect.bisect_right(self._marks, self._now_s() - self._max_age_s, key=lambda mark: mark[1])
        del self._marks[:found]
        self._own = max(0, self._own - found)
        return self._marks[0][0] if self._marks else following

    def _is_apart(self, at_s: float) -> bool:
        """Whether a mark at this time is far enough from the last one."""
        return not self._marks or at_s - self._marks[-1][1] >= self._max_age_s / MARKS

    def _now_s(self) -> float:
        now_s = self._clock()
        self._lived_s, self._at_s = self._lived_s + max(0.0, now_s - self._at_s), now_s
        return self._lived_s

    def _step_s(self) -> float:
        """Return the seconds by which the wall clock is ahead of the lived seconds since the anchor."""
        wall_s, now_s = self._wall(), self._now_s()
        if wall_s < SET_FROM_S:
            return 0.0
        if self._anchor is None:
            self._anchor = now_s, wall_s
        return (wall_s - self._anchor[1]) - (now_s - self._anchor[0])

    def _look(self) -> None:
        """Count a step of the wall clock that has stood for long enough."""
        step_s, now_s = self._step_s(), self._now_s()
        if abs(step_s) <= STEP_S:
            self._ahead = None
        elif self._ahead is None or abs(step_s - self._ahead[0]) > STEP_S:
            self._ahead = step_s, now_s
        elif now_s - self._ahead[1] >= SETTLED_S:
            self._believe(step_s)

    def _believe(self, step_s: float) -> None:
        """Age the samples of earlier starts; this process knows the age of its own."""
        self._ahead, self.stepped = None, True
        if step_s < 0.0:  # the clock was set back: nothing gets younger, and the next step counts from here
            self._anchor = self._lived_s, self._wall()
            return
        self._lived_s += step_s
        self._marks[self._own :] = [(key, at_s + step_s) for key, at_s in self._marks[self._own :]]
