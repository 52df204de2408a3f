"""Limits torch to one thread while a small net is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: the coordinator's nets are too small to split, and one thread always adds in the same order.

    Afterwards torch has as many threads as before.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_threads(count: int) -> None:
    """Let torch compute with this many threads from now on."""
    torch.set_num_threads(count)
