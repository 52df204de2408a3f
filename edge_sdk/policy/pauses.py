"""Decides which pauses of training the coordinator is told of."""

from __future__ import annotations

from edge_sdk.policy.conditions import Objection

TELL_AFTER_S = 5.0
"""Seconds that a pause within an exchange lasts before it is told: a short one delays the upload, no more."""
PAUSED = Objection("paused", "paused by its owner")


class PauseReport:
    """The objection that the coordinator should know of.

    It is told at once if nothing of the exchange is computed yet, or nothing more of the round will be, and otherwise
    after a while.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def to_tell(self, objection: Objection | None, now_s: float, *, fresh: bool) -> Objection | None:
        """Return what to tell; None: that the device takes part.  fresh: nothing of the exchange is computed yet."""
        if objection is None:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
        at_once = fresh or objection.round is not None
        return objection if at_once or now_s - self._since_s >= TELL_AFTER_S else None
