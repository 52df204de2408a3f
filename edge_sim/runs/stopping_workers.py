"""Stops worker processes that carry out runs when their parent asks for it, or has died.

Ctrl-C reaches all processes of a terminal.  Workers block its signal, so that only the parent decides: it closes a
pipe, and the current run keeps a checkpoint.  The system closes the pipe of a killed parent.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

from edge_sim.clock.checkpoint import held_back

PATIENCE_S = 10.0
"""Time after which a run is interrupted again: an import may swallow an interrupt."""
_STOPPED = threading.Event()
_AT_WORK = threading.Lock()
"""Held while this worker carries out a run."""


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Let processes started inside block SIGINT permanently; this process receives it at the end of the context."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    with held_back() as check:  # another thread may still receive it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        check()


def stop_with(pipe: Connection[Any, Any]) -> None:
    """Stop this worker process when the parent closes its end of the pipe or dies."""
    threading.Thread(target=_stop_with, args=(pipe,), daemon=True).start()


def _stop_with(pipe: Connection[Any, Any]) -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
    _STOPPED.set()
    while not _AT_WORK.acquire(blocking=False):
        _thread.interrupt_main()  # the run keeps a checkpoint
        if _AT_WORK.acquire(timeout=PATIENCE_S):
            break
    _AT_WORK.release()
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        with _AT_WORK:
            os._exit(1)  # the main thread waits for work that will never come


@contextmanager
def at_work() -> Iterator[None]:
    """Carry out a run inside.  Raises KeyboardInterrupt if the worker is stopped, before or during the run."""
    with _AT_WORK:
        if _STOPPED.is_set():
            raise KeyboardInterrupt
        yield
