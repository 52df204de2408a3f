"""Calls a participant of a simulation only when it has something to do."""

from __future__ import annotations

from collections.abc import Callable

from edge_sim.clock.clock import VirtualClock


class Waker:
    """Calls a participant only when it has a message or its next deadline has come."""

    def __init__(self, clock: VirtualClock, act: Callable[[], None], due_s: Callable[[], float | None]) -> None:
        self._clock, self._act, self._due_s = clock, act, due_s
        self._soon = False
        self._stopped = False
        self._alarm_s: float | None = None

    def stop(self) -> None:
        """Stop making calls."""
        self._stopped = True

    def soon(self) -> None:
        """Call after all events of the present moment."""
        if not self._soon:
            self._soon = True
            self._clock.at(self._clock.now_s, self._run)

    def look(self) -> None:
        """Set the alarm for the next deadline; no message needs a call."""
        if not self._soon and not self._stopped:
            self._set_alarm()

    def _run(self) -> None:
        self._soon = False
        if self._stopped:
            return
        self._act()
        self._set_alarm()

    def _set_alarm(self) -> None:
        due_s = self._due_s()
        if due_s is None or (self._alarm_s is not None and self._clock.now_s < self._alarm_s <= due_s):
            return
        self._alarm_s = due_s
        self._clock.at(due_s, self._ring)

    def _ring(self) -> None:
        if self._alarm_s is not None and self._clock.now_s >= self._alarm_s:
            self._alarm_s = None
        self._run()
