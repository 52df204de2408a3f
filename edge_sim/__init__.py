"""The fleet simulator: it runs N agents and one coordinator, with the code of a deployment, on one machine.

config/, data/, models/ and fleet/ describe and build the devices.  clock/ runs them in virtual time, shards/ does
so in several processes, over_broker/ runs them over a broker, lab/ on boards.  engines/ compute.  runs/ carries out one
run, studies/ many, and replay/ repeats a recorded one.
projects/ makes what a newcomer begins with.  notebook/ is the Python interface.

May import edge_sdk and coordinator.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_sim.notebook.interface import compare_methods as compare
    from edge_sim.notebook.interface import run_federation as run
    from edge_sim.notebook.interface import sweep_settings as sweep
    from edge_sim.notebook.outcomes import SimulationResult as Result

__all__ = ["Result", "compare", "run", "sweep"]
_HOMES = {
    "Result": "edge_sim.notebook.outcomes:SimulationResult",
    "compare": "edge_sim.notebook.interface:compare_methods",
    "run": "edge_sim.notebook.interface:run_federation",
    "sweep": "edge_sim.notebook.interface:sweep_settings",
}


def __getattr__(name: str) -> Any:
    """Load the interface, and numpy with it, at the first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edge_sim' has no attribute {name!r}")
    return pkgutil.resolve_name(_HOMES[name])
