"""The compute devices of torch on this machine: the processor, or a GPU by its number."""

from __future__ import annotations

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
