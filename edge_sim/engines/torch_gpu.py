"""A GPU that computes as a CPU does."""

from __future__ import annotations

import torch


def use_exact_arithmetic() -> None:
    """For this process: f4 with all its bits, which convolutions would halve, by algorithms that repeat theirs."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
