"""Torch's settings for a whole process: its compute devices, threads and random generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edge_sdk.errors import MissingExtra, UsageError

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "torch", "a GPU") from error


def check_device(name: str, where: str) -> None:
    """Raise UsageError unless this machine has the device: cpu or cuda:N; where: the setting that names it."""
    kind, _, index = name.partition(":")
    if kind == "cuda" and not (torch.cuda.is_available() and int(index) < torch.cuda.device_count()):
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU that torch can use"
        raise UsageError(f"{where}: {name}, but this machine has {found}; use cpu")


def device_name(name: str) -> str:
    """Return a description of an existing device."""
    return f"{name} ({torch.cuda.get_device_name(name)})" if name.startswith("cuda") else name


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
