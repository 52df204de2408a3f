"""Settings for a GPU that give the results of a CPU, up to rounding."""

from __future__ import annotations

import torch


def use_exact_arithmetic() -> None:
    """Let convolutions in this process use all bits of f4, and deterministic algorithms."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
