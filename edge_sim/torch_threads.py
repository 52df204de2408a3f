"""One thread for torch: results repeat bit for bit, and a board's worth of work does not pay for a thread pool."""

from __future__ import annotations

import torch


def one_thread() -> None:
    """For this process."""
    torch.set_num_threads(1)
