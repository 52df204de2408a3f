"""Temporary use of torch's global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed torch's generators with `seed` inside (layer initialisation, dropout), and restore them afterwards.

    Only the generators of the CPU and of `device` are touched: torch.manual_seed would reseed every accelerator.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
