"""The copy of a model that predict() uses, replaced as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edge_sdk.models.base import Served


class CurrentCopy:
    """Holds the copy of a model that any thread may ask, while the model itself trains in another.

    Nobody waits for training: replacing the copy is one assignment, and a call that has begun ends on the copy that it
    began with.
    """

    def __init__(self, make: Callable[[], Served]) -> None:
        """Make nothing yet: a device that is never asked needs no second model in memory."""
        self._make = make
        self._now: Served | None = None
        self._first = threading.Lock()

    def now(self) -> Served:
        """Return the copy; the first call makes it, which must come before training or from the thread that trains."""
        found = self._now
        if found is not None:
            return found
        with self._first:
            if self._now is None:
                self._now = self._make()
            return self._now

    def put(self, served: Served) -> None:
        """Let later calls use another copy."""
        self._now = served

    def renew(self) -> None:
        """Make the copy again, before training begins."""
        with self._first:
            self._now = self._make()
