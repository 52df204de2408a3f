"""The copy of a model that predict() uses, replaced as a whole."""

from __future__ import annotations

import threading

from edge_sdk.models.base import Model, Served, serving_copy


class Snapshot:
    """Holds the copy of a model that any thread may ask, while the model itself trains in another.

    Nobody waits for training: replacing the copy is one assignment, and a call that has begun ends on the copy that it
    began with.
    """

    def __init__(self, model: Model) -> None:
        """Copy nothing yet: a device that is never asked needs no second model in memory."""
        self._model = model
        self._now: Served | None = None
        self._first = threading.Lock()

    @property
    def taken(self) -> bool:
        """Whether there is a copy."""
        return self._now is not None

    def now(self) -> Served:
        """Return the copy; the first call makes it, which must come before training or from the thread that trains."""
        found = self._now
        if found is not None:
            return found
        with self._first:
            if self._now is None:
                self._now = serving_copy(self._model)
            return self._now

    def put(self, served: Served) -> None:
        """Let later calls use another copy."""
        self._now = served
