"""A Refusal that reaches a device while it takes part: without signatures, somebody else may have said the Hello."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.protocol.messages import Refusal

DOUBT_S = 5.0
"""How long a device that asks again waits for a Welcome."""


class DoubtedRefusal:
    """Asks the coordinator again, and believes a Refusal only if another one comes then, and no Welcome."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """ask: says Hello, if the link is up."""
        self._ask = ask
        self._again: Refusal | None = None
        """The Refusal that came after it had asked again."""
        self.due_s: float | None = None
        """When to call `settled`, in seconds; None: nothing is in doubt."""

    def came(self, refusal: Refusal, now_s: float, *, names_start: bool) -> None:
        """Take in a Refusal.

        names_start: whether it names this start of the device.  Else it answers a frame that the coordinator could not
        read, which anybody may have sent: it is reason to ask, and none to leave.
        """
        if self.due_s is None:
            self._begin(now_s)
        elif names_start:
            self._again = refusal

    def welcomed(self) -> None:
        """Forget it: the coordinator takes this device."""
        self.due_s = self._again = None

    def settled(self, now_s: float, *, over: bool = False) -> Refusal | None:
        """Return the Refusal to obey, if the wait or the run is over; asks once more if there was no answer at all."""
        if self.due_s is None or not (over or now_s >= self.due_s):
            return None
        if self._again is None and not over:
            self._begin(now_s)
        return self._again

    def _begin(self, now_s: float) -> None:
        self.due_s = now_s + DOUBT_S
        self._ask()
