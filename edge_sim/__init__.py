"""The fleet simulator: N agents and one coordinator on one machine, running the code of a deployment.

In Python, begin with `run`, which simulates one federation.  `compare` runs several methods, and `sweep` a grid of
settings.

config/, data/, models/ and fleet/ describe and build the devices.  clock/ runs them in virtual time, shards/ does so in
several processes, over_broker/ runs them over a broker, and lab/ on boards.  engines/ computes.  runs/ executes one
run, studies/ many, and replay/ repeats a recorded one.  projects/ creates a newcomer's first files.  notebook/ is the
Python interface.

May import edge_sdk and coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.errors import RunFailed
    from edge_sim.notebook.interface import compare_methods as compare
    from edge_sim.notebook.interface import run_federation as run
    from edge_sim.notebook.interface import sweep_settings as sweep
    from edge_sim.notebook.outcomes import SimulationResult as Result

__all__ = ["Result", "RunFailed", "compare", "run", "sweep"]
_HOMES = {
    "Result": "edge_sim.notebook.outcomes:SimulationResult",
    "RunFailed": "edge_sdk.errors:RunFailed",
    "compare": "edge_sim.notebook.interface:compare_methods",
    "run": "edge_sim.notebook.interface:run_federation",
    "sweep": "edge_sim.notebook.interface:sweep_settings",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)
