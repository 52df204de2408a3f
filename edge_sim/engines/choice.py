"""The choice of a run's engine: the one that its TOML names, or, with `auto`, what a short calibration finds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_sdk.errors import StoreError, UsageError
from edge_sim.config.settings import CPU, Config, RunTable
from edge_sim.engines.base import Engine, ExactEngine, MethodWrapper, unchanged
from edge_sim.engines.remote import ray_address
from edge_sim.engines.remote.engine import RemoteEngine
from edge_sim.engines.shard_rules import check_for_shards
from edge_sim.fleet.fleet import Fleet

WORTH_S = 10.0
"""Processes take seconds to start: below this many seconds of computing they are not chosen."""
CHOICE_FILE = "engine.json"
"""File in a run directory with the choice of `auto`, for resumed runs."""


def open_engine(table: RunTable, fleet: Fleet) -> Engine:
    """Return the engine of a run.  Raises UsageError for one that this machine cannot have."""
    if table.engine == "ray":
        address = ray_address.find_ray_address(table)
        from edge_sim.engines.remote.ray_actor_pool import RayActorPool  # an extra, and slow to load

        return RemoteEngine(RayActorPool(table, fleet, address), frozenset(table.stacked or ()))
    if not any(device.kit.needs_torch for device in fleet.devices):
        return ExactEngine()  # what does not load torch must not load it now
    from edge_sim.engines.torch_engines import cohort, workers  # torch only where a device has it

    if table.engine == "cohort":
        return cohort(table, fleet)
    if table.engine in ("workers", "shards"):  # a run in shards that is resumed
        if os.name != "posix":
            raise UsageError('run.engine: "workers" needs a system that hands files down to processes; use "cohort"')
        return workers(table, fleet)
    return ExactEngine()


def method_wrapper(table: RunTable) -> MethodWrapper:
    """Return what decides where uploads are added up; the engine of the run is open."""
    if not (table.engine == "ray" and table.ray_fold):
        return unchanged
    from edge_sim.engines.remote.ray_fold import fold_on_ray  # an extra, and slow to load

    return fold_on_ray


def resolve_engine(config: Config, fleet: Fleet, out: Path | None = None) -> tuple[Config, str]:
    """Replace the engine `auto` by a certain one; return the config, and a line that says why.

    The choice is kept in the run directory `out`, and a resumed run takes it from there.  Nothing that the fleet was
    built from is changed.
    """
    if config.run.engine != "auto":
        return config, ""
    kept = out / CHOICE_FILE if out else None
    if kept is not None and kept.exists():
        return _with(config, _read(kept)), f"engine: as before ({kept})"
    choice, why = _choice(config, fleet)
    if kept is not None:
        kept.write_text(json.dumps(choice), encoding="utf-8")
    return _with(config, choice), why


def _read(file: Path) -> Mapping[str, Any]:
    try:
        choice: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: does not read ({error}); remove it, and the engine is chosen anew") from None
    return choice


def _choice(config: Config, fleet: Fleet) -> tuple[dict[str, Any], str]:
    """Return the keys of [run] that are set, and in words why."""
    if not any(device.kit.needs_torch for device in fleet.devices):
        return {"engine": "exact"}, "engine: exact (no model here computes in torch)"
    from edge_sim.engines.torch_engines import calibrated  # torch only where a device has it

    found = calibrated(config.run, fleet)
    stacked = [each.model for each in found if each.stacks]
    total_s = sum(each.best_ms * each.devices for each in found) / 1000 * config.federation.rounds
    cores = config.run.workers or os.cpu_count() or 1
    choice: dict[str, Any] = {"engine": "cohort" if stacked else "exact", "stacked": stacked}
    if cores > 1 and total_s > WORTH_S and _processes_can(config, fleet):
        choice = {"engine": _of_processes(config, fleet), "workers": cores, "stacked": stacked}
    words = choice["engine"] + (f", {choice['workers']} processes" if "workers" in choice else "")
    told = "; ".join(str(each) for each in found)
    return choice, f"engine: {words}, stacked: {', '.join(stacked) or 'none'} (measured: {told})"


def _processes_can(config: Config, fleet: Fleet) -> bool:
    """Whether other processes can have these devices: not on a GPU, nor with functions that no module's file has."""
    modules = [sys.modules.get(name.partition(":")[0]) for name in fleet.brought]
    of_files = all(module is None or module.__spec__ is not None for module in modules)
    return of_files and config.run.device == CPU and os.name == "posix"


def _of_processes(config: Config, fleet: Fleet) -> str:
    """Return the quickest engine of several processes that can have this run."""
    if config.run.memory_bytes is not None:
        return "workers"
    try:
        check_for_shards(fleet, config.faults)
    except UsageError:
        return "workers"
    return "shards"


def _with(config: Config, choice: Mapping[str, Any]) -> Config:
    stacked = choice.get("stacked")
    run = replace(config.run, **{**choice, "stacked": None if stacked is None else tuple(stacked)})
    run.check(f"{config.file}: run")
    return replace(config, run=run)
