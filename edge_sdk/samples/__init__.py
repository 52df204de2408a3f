"""A device's own data as it comes: the store that an app puts samples into, and the readers of folders and files.

May import public_set and the single files data, arrays, durable and errors; the device, the agent and the sources of
the simulator use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_sdk.samples.store import SampleStore

__all__ = ["SampleStore"]

_HOMES = {"SampleStore": "edge_sdk.samples.store"}


def __getattr__(name: str) -> Any:
    """A public name, its module loaded at the first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
