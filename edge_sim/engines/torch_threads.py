"""Torch's settings in a simulation: one thread, so that results repeat bit for bit, and exact arithmetic on a GPU.

A small board's work does not pay for a thread pool.  Several Python threads that compute with torch
must not wait for one another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TURN_S = 0.0002
"""Longer than the gap between two matrix products, shorter than a product of ten nets; Python's default is 5 ms."""


def use_one_thread() -> None:
    """Let torch compute on one thread in this process."""
    torch.set_num_threads(1)


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let Python threads take turns every 0.2 ms inside the context."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def use_exact_arithmetic() -> None:
    """Use full f4 precision and deterministic algorithms in this process."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
