"""Settings for a GPU that give the results of a CPU, up to rounding."""

from __future__ import annotations

import torch


def use_exact_arithmetic() -> None:
    """Use full f4 precision and deterministic algorithms in this process."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
