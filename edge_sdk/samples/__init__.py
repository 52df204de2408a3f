"""A device's own data: the store that an app fills with samples, and the readers of folders and files.

May import public_set and the single files data, arrays, durable and errors; the device, the agent and the sources of
the simulator use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.samples.store import SampleStore

__all__ = ["SampleStore"]

_HOMES = {"SampleStore": "edge_sdk.samples.store"}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)
