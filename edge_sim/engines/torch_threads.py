"""Threads of torch and Python: torch computes on one, so that results repeat bit for bit.

The work of a small board does not pay for a thread pool.  Where several of Python's threads compute with torch, they
must not wait for one another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TURN_S = 0.0002
"""Longer than the time between two matrix products, shorter than a product of ten nets; Python's own is 5 ms."""


def use_one_thread() -> None:
    """Let torch compute on one thread in this process."""
    torch.set_num_threads(1)


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let a thread that runs Python give way to another one after 0.2 ms, inside the context."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
