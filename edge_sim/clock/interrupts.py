"""Delays Ctrl-C to a moment at which a complete checkpoint can be written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Delay a first SIGINT until the yielded function is called, which raises it; a second one is raised at once.

    Within an event of the virtual clock the state is incomplete and no checkpoint can be written.
    Outside the main thread, where signals never arrive, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    def check() -> None:
        if came.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
