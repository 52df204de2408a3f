"""Calls a participant of a simulation only when it has something to do."""

from __future__ import annotations

from typing import Protocol

from edge_sim.clock.clock import VirtualClock


class Wakeable(Protocol):
    """A participant, as its waker sees it."""

    def act(self) -> None:
        """Take all waiting messages, and do what is due."""

    def next_due_s(self) -> float | None:
        """Return the virtual time in seconds of the next task that needs no message, or None."""


class Waker:
    """Calls a participant only when it has a message or its next deadline has come."""

    __slots__ = ("_alarm_s", "_clock", "_soon", "_stopped", "_whom")

    def __init__(self, clock: VirtualClock, whom: Wakeable) -> None:
        self._clock, self._whom = clock, whom
        self._soon = False
        self._stopped = False
        self._alarm_s: float | None = None

    def stop(self) -> None:
        """Stop making calls."""
        self._stopped = True

    def __call__(self) -> None:
        """Call after all events of the present moment."""
        if not self._soon:
            self._soon = True
            self._clock.at(self._clock.now_s, self._run)

    def look(self) -> None:
        """Set the alarm for the next deadline, without a call."""
        if not self._soon and not self._stopped:
            self._set_alarm()

    def _run(self) -> None:
        self._soon = False
        if self._stopped:
            return
        self._whom.act()
        self._set_alarm()

    def _set_alarm(self) -> None:
        due_s = self._whom.next_due_s()
        if due_s is None or (self._alarm_s is not None and self._clock.now_s < self._alarm_s <= due_s):
            return
        self._alarm_s = due_s
        self._clock.at(due_s, self._ring)

    def _ring(self) -> None:
        if self._alarm_s is not None and self._clock.now_s >= self._alarm_s:
            self._alarm_s = None
        self._run()
