"""Doubts a Refusal that reaches a device while it takes part: an unsigned Hello may have been forged."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.protocol.messages import Refusal

DOUBT_S = 5.0
"""How long a device waits for a Welcome after it asks again."""


class DoubtedRefusal:
    """Asks the coordinator again, and obeys a Refusal only if another Refusal answers, not a Welcome."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """ask: sends a Hello, if the link is up."""
        self._ask = ask
        self._again: Refusal | None = None
        """The Refusal that arrived after asking again."""
        self.due_s: float | None = None
        """When to call `settled`, in seconds, or None if nothing is in doubt."""

    def came(self, refusal: Refusal, now_s: float, *, names_start: bool) -> None:
        """Ask again after a first Refusal; keep a second one that names this start of the device.

        names_start: whether it does.  Others answer frames that the coordinator could not read, which anyone may have
        sent: a reason to ask, not to leave.
        """
        if self.due_s is None:
            self._begin(now_s)
        elif names_start:
            self._again = refusal

    def welcomed(self) -> None:
        """Forget the Refusal, because the coordinator accepts this device."""
        self.due_s = self._again = None

    def settled(self, now_s: float, *, over: bool = False) -> Refusal | None:
        """Return the Refusal to obey once the wait or the run is over; without any answer, ask again."""
        if self.due_s is None or not (over or now_s >= self.due_s):
            return None
        if self._again is None and not over:
            self._begin(now_s)
        return self._again

    def _begin(self, now_s: float) -> None:
        self.due_s = now_s + DOUBT_S
        self._ask()
