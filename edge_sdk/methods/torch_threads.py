"""One thread for torch while a small net is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Nets on the coordinator are far too small to share out, and one thread always adds up in the same order.

    Afterwards torch has as many threads as before.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
