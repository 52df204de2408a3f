"""The fleet simulator: it runs N agents and one coordinator, with the code of a deployment, on one machine.

config/, data/, models/ and fleet/ describe and build the devices.  clock/ runs them in virtual time, over_broker/ as
processes.  engines/ compute.  runs/ carries out one run, studies/ many, and replay/ repeats a recorded one.
projects/ makes what a newcomer begins with.

May import edge_sdk and coordinator.
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
