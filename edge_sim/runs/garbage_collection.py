"""Fewer looks for garbage.

Python's collector looks through all objects for circles that nobody holds, whenever they have grown by a quarter.  A
fleet of thousands of devices holds next to no such circles, and grows a lot while it is built and run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = 50_000, 20, 100
"""New objects before a look at them, and looks before those before are looked at again; Python's own are 700, 10, 10
(2,000 from 3.14)."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look seldom while this lasts, and never at what was there before; then as usual again."""
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
