"""The fleet simulator: N agents and one coordinator, the very code of a deployment, on one machine.

config/, data/, models/ and fleet/ say which devices there are; clock/ and over_broker/ let them live; engines/ compute;
runs/ is one run, studies/ are many, replay/ repeats a recorded one.  May import edge_sdk and coordinator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_sim.runs.runner import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    """Load `run`, and numpy with it, at the first use."""
    if name != "run":
        raise AttributeError(f"module 'edge_sim' has no attribute {name!r}")
    return importlib.import_module("edge_sim.runs.runner").run
