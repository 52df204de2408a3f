"""How a run computes: the engine of a process, and the values for `auto`, from a short calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_sdk.errors import StoreError
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.toml_table import to_table
from edge_sim.config import run_keys
from edge_sim.config.settings import AUTO, CPU, Config, RunTable, read_run_table
from edge_sim.engines.base import Engine, ExactEngine
from edge_sim.fleet.feasible import DORMANT_FROM
from edge_sim.fleet.fleet import Device, Fleet
from edge_sim.models.given_functions import known_elsewhere

WORTH_S = 10.0
"""Processes take seconds to start, so less computing than this is not worth them."""
CHOICE_FILE = "engine.json"
"""File in a run directory with the values chosen for `auto`, for resumed runs."""


def open_engine(
    table: RunTable, devices: Iterable[Device], spec: FederationSpec, *, threads: int | None = None
) -> Engine:
    """Return the engine that computes for these devices in this process.  threads: see torch_engines."""
    stacks, own = table.stack and table.stacked != (), tuple(devices)
    sleep = len(own) >= DORMANT_FROM and not any(each.kit.brought or each.kit.privacy for each in own)
    in_file = table.memory_bytes and not sleep  # the models of sleeping devices need no engine to be in a file
    if not (stacks or in_file) or not any(device.kit.needs_torch for device in own):
        return ExactEngine()  # a run without torch must not load it now
    from edge_sim.engines.torch_engines import stacking_engine  # torch only where a device has it

    return stacking_engine(table, spec, threads=threads)


def resolve_run(config: Config, fleet: Fleet, out: Path | None = None) -> tuple[Config, str]:
    """Replace `auto` in [run] by the fastest values here; return the config, and a line with the reason.

    The choice is kept in the run directory `out` for a resumed run.  It changes no setting that the fleet was
    built from is changed.
    """
    if AUTO not in (config.run.stack, config.run.processes) or (config.run.cluster and config.run.stack != AUTO):
        return config, ""  # only Ray knows how many processors a cluster has
    kept = out / CHOICE_FILE if out else None
    if kept is not None and kept.exists():
        return _with(config, _read(kept)), f"run: as before ({kept})"
    choice, why = _choice(config, fleet)
    if kept is not None:
        kept.write_text(json.dumps(choice), encoding="utf-8")
    return _with(config, choice), why


def _read(file: Path) -> Mapping[str, Any]:
    try:
        choice: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file}: cannot be read ({error}); remove it to choose again") from None
    return choice


def _choice(config: Config, fleet: Fleet) -> tuple[dict[str, Any], str]:
    """Return the chosen keys of [run], and a line with the reason."""
    run = config.run
    if not any(device.kit.needs_torch for device in fleet.devices):
        return _filled(run, 1, []), "run: 1 process (no model here computes in torch)"
    from edge_sim.engines.torch_engines import calibrated  # torch only where a device has it

    found = calibrated(run, fleet)
    stacked = [each.model for each in found if each.stacks] if run.stack == AUTO else []
    total_s = sum(each.best_ms * each.devices for each in found) / 1000 * config.federation.rounds
    cores = os.cpu_count() or 1
    processes = cores if total_s > WORTH_S and _processes_can(config, fleet) else 1
    choice = _filled(run, processes, stacked)
    number = f"{choice['processes']} process{'es' if choice['processes'] != 1 else ''}"
    timings = "; ".join(str(each) for each in found)
    return choice, f"run: {number}, stacked: {', '.join(stacked) or 'none'} (measured: {timings})"


def _filled(run: RunTable, processes: int, stacked: list[str]) -> dict[str, Any]:
    """Return the keys of [run] that are `auto`, with the chosen values."""
    chosen: dict[str, Any] = {"processes": processes if run.processes == AUTO and not run.cluster else run.processes}
    return chosen | ({"stack": bool(stacked), "stacked": stacked} if run.stack == AUTO else {})


def _processes_can(config: Config, fleet: Fleet) -> bool:
    """Whether other processes can have these devices: not on a GPU, nor with functions outside a module's file."""
    return all(map(known_elsewhere, fleet.brought)) and config.run.device == CPU and os.name == "posix"


def _with(config: Config, choice: Mapping[str, Any]) -> Config:
    known, _ = run_keys.current(choice, f"{CHOICE_FILE}: ")
    table = {**to_table(config.run), **known}
    return replace(config, run=read_run_table(table, config.file))
