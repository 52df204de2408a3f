"""Which engine a run computes on: as its TOML says, or, with `auto`, as a short calibration finds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_sdk.errors import StoreError, UsageError
from edge_sim import fleet as fleets
from edge_sim import ray_address
from edge_sim.config import CPU, Config, RunTable
from edge_sim.engine import Engine, Exact, Reduction, unchanged
from edge_sim.fleet import Fleet

WORTH_S = 10.0
"""Seconds of computing below which processes that take seconds to start are not worth it."""
PLAN = "engine.json"
"""In a run directory: what `auto` came to, for those who go on with the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a round of one device of one kind of model was found to cost."""

    model: str
    devices: int
    alone_ms: float
    stacked_ms: float | None
    """None: it does not stack."""

    @property
    def stacks(self) -> bool:
        """Whether stacking is worth it."""
        return self.stacked_ms is not None and self.stacked_ms < 0.8 * self.alone_ms

    @property
    def best_ms(self) -> float:
        """The faster way."""
        return self.stacked_ms if self.stacks and self.stacked_ms is not None else self.alone_ms

    def __str__(self) -> str:
        also = "" if self.stacked_ms is None else f", {self.stacked_ms:.2f} ms stacked"
        return f"{self.model} {self.alone_ms:.2f} ms a device and round{also}"


def opened(table: RunTable, fleet: Fleet) -> Engine:
    """The engine of a run, ready.  Raises UsageError for one that this machine cannot have."""
    if table.engine == "ray":
        address = ray_address.found(table)
        from edge_sim.ray_engine import RayEngine  # noqa: PLC0415  # an extra, and slow to load

        return RayEngine(table, fleet, address)
    if not any(fleets.needs_torch(device.kit.family) for device in fleet.devices):
        return Exact()  # what does not load torch must not load it now
    from edge_sim.torch_engines import cohort, workers  # noqa: PLC0415  # torch only where a device has it

    if table.engine == "cohort":
        return cohort(table, fleet)
    if table.engine == "workers":
        if os.name != "posix":
            raise UsageError('run.engine: "workers" needs a system that hands files down to processes; use "cohort"')
        return workers(table, fleet)
    return Exact()


def reduction(table: RunTable) -> Reduction:
    """Where a run's uploads are added up; its engine is open."""
    if not (table.engine == "ray" and table.ray_fold):
        return unchanged
    from edge_sim.ray_fold import folding  # noqa: PLC0415  # an extra, and slow to load

    return folding


def resolved(config: Config, out: Path | None = None) -> tuple[Config, str]:
    """The config with a certain engine in place of `auto`, and in words why; as before where `out` tells of before."""
    if config.run.engine != "auto":
        return config, ""
    kept = out / PLAN if out else None
    if kept is not None and kept.exists():
        return _with(config, _read(kept)), f"engine: as before ({kept})"
    plan, why = _plan(config)
    if kept is not None:
        kept.write_text(json.dumps(plan), encoding="utf-8")
    return _with(config, plan), why


def _read(file: Path) -> Mapping[str, Any]:
    try:
        plan: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: does not read ({error}); remove it, and the engine is chosen anew") from None
    return plan


def _plan(config: Config) -> tuple[dict[str, Any], str]:
    fleet = fleets.build(config)
    if not any(fleets.needs_torch(device.kit.family) for device in fleet.devices):
        return {"engine": "exact"}, "engine: exact (no model here computes in torch)"
    from edge_sim.torch_engines import calibrated  # noqa: PLC0415  # torch only where a device has it

    found = calibrated(config.run, fleet)
    stacked = [each.model for each in found if each.stacks]
    total_s = sum(each.best_ms * each.devices for each in found) / 1000 * config.federation.rounds
    cores = config.run.workers or os.cpu_count() or 1
    plan: dict[str, Any] = {"engine": "cohort" if stacked else "exact", "stacked": stacked}
    if cores > 1 and total_s > WORTH_S and config.run.device == CPU:
        plan = {"engine": "workers", "workers": cores, "stacked": stacked}
    choice = plan["engine"] + (f", {plan['workers']} processes" if "workers" in plan else "")
    told = "; ".join(str(each) for each in found)
    return plan, f"engine: {choice}, stacked: {', '.join(stacked) or 'none'} (measured: {told})"


def _with(config: Config, plan: Mapping[str, Any]) -> Config:
    tables = {**config.tables, "run": {**config.tables.get("run", {}), **plan}}
    stacked = plan.get("stacked")
    run = replace(config.run, **{**plan, "stacked": None if stacked is None else tuple(stacked)})
    run.check(f"{config.file}: run")
    return replace(config, tables=tables, run=run)
