"""The fleet simulator: N agents and one coordinator, the very code of a deployment, on one machine."""

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
