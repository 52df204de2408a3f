"""An app's callbacks.  Their errors are counted, logged the first time, and otherwise ignored."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from edge_sdk.errors import UsageError

log = logging.getLogger(__name__)


class Callbacks:
    """The callbacks of one agent, by kind, such as on_round."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._registered: dict[str, list[Callable[[Any], None]]] = {}
        self.errors: Counter[str] = Counter()
        """The number of errors by kind of callback."""

    def add(self, kind: str, callback: Callable[[Any], None]) -> None:
        """Register a callback.  Raises UsageError for an object that cannot be called."""
        if not callable(callback):
            raise UsageError(f"{kind}: found {type(callback).__name__}: give a function of one argument")
        self._registered.setdefault(kind, []).append(callback)

    def has(self, kind: str) -> bool:
        """Whether there is a callback of a kind."""
        return bool(self._registered.get(kind))

    def call(self, kind: str, argument: object) -> None:
        """Call all callbacks of a kind, in the order in which they were registered."""
        for callback in self._registered.get(kind, ()):
            self._call_one(kind, callback, argument)

    def _call_one(self, kind: str, callback: Callable[[Any], None], argument: object) -> None:
        try:
            callback(argument)
        except BaseException as error:  # asyncio.CancelledError and pytest.fail() derive from BaseException
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and isinstance(error, KeyboardInterrupt | SystemExit):
                raise  # raised by a signal handler, which may interrupt any line of the main thread
            self.errors[kind] += 1
            if self.errors[kind] == 1:  # a callback that fails in every round would fill the disk
                log.exception("agent %s: a callback of %s failed; further ones are only counted", self._device, kind)
