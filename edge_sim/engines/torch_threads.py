"""One thread for torch: results repeat bit for bit, and a board's worth of work does not pay for a thread pool.

Where several of Python's threads compute with torch, they must not wait for one another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TURN_S = 0.0002
"""Longer than one needs between two products, shorter than a product of ten nets; Python's own is 5 ms."""


def use_one_thread() -> None:
    """For this process."""
    torch.set_num_threads(1)


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """While this lasts, a thread that runs Python makes way soon for one whose product is done."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
