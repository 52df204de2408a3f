"""Less frequent garbage collection during a run.

Python's collector searches all objects for unreachable cycles whenever their number has grown by a quarter.  A fleet of
thousands of devices has almost no such cycles, and its number of objects grows fast while it is built and run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = 50_000, 20, 100
"""Thresholds of the three generations; Python's own are 700, 10, 10 (2,000 from 3.14)."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely inside the context, skipping earlier objects; restore the thresholds at exit."""
    before, ours = gc.get_threshold(), not gc.get_freeze_count()
    if ours:
        gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if ours:
            gc.unfreeze()
