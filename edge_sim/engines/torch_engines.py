"""The stacking engine for a run's table, and the calibration that chooses models to stack."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Fit
from edge_sdk.models.optim import moment_count
from edge_sdk.objectives import CrossEntropy, optim_of
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.config.settings import CPU, RunTable
from edge_sim.engines.base import DeviceRequest, Engine, ExactEngine, job_at
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.engines.stack.torch_parameter_rows import ParameterRows
from edge_sim.engines.stack.torch_stack import DenseStacking, Stacking, VmapStacking
from edge_sim.engines.torch_threads import use_one_thread
from edge_sim.fleet.fleet import Device, Fleet

_REPEATS = 3
_A_FEW = 10
"""Number of devices timed one by one."""


def stacking_engine(table: RunTable, spec: FederationSpec, *, threads: int | None = None) -> CohortEngine:
    """Return the engine that stacks in this process.

    threads: for large stacks; default: one per core, or one on a GPU, which computes stacks one by one.
    """
    names = (None if table.stacked is None else frozenset(table.stacked)) if table.stack else frozenset[str]()
    on_cores = (threads or os.cpu_count() or 1) if table.device == CPU and table.stack else 1
    return CohortEngine(names, _rows(table, spec), on_cores, _stacking(table))


def _stacking(table: RunTable) -> Stacking:
    """Return the way to build stacks: any nets on a GPU; only dense nets on a CPU, where convolutions were slower."""
    return DenseStacking() if table.device == CPU else VmapStacking()


def _rows(table: RunTable, spec: FederationSpec) -> ParameterRows:
    """Return memory for weights and optimiser moments, on disk above the table's cap."""
    spill = None if table.memory_bytes is None else Path(tempfile.gettempdir())
    device = None if table.device == CPU else torch.device(table.device)
    return ParameterRows(moment_count(optim_of(spec, 0)), spill, table.memory_bytes or 0, device)


def calibrated(table: RunTable, fleet: Fleet) -> list[ModelTiming]:
    """Measure a round's training of each kind of model on this machine, alone and stacked, with separate models."""
    use_one_thread()
    kinds: dict[tuple[object, ...], list[Device]] = {}
    for device in fleet.devices:
        if device.kit.needs_torch:
            kit = device.kit
            kinds.setdefault((kit.family, kit.size, kit.feature_dim), []).append(device)
    return [_measured(fleet, devices, _stacking(table)) for devices in kinds.values()]


def _measured(fleet: Fleet, devices: Sequence[Device], way: Stacking) -> ModelTiming:
    benches = [Workbench(each.kit.model(each.public), each.data, each.public) for each in devices[: way.max_devices]]
    asked = [_fit(fleet, device, bench) for device, bench in zip(devices, benches, strict=False)]
    few = asked[:_A_FEW]
    alone_ms = _best_ms(ExactEngine(), few) / len(few)
    together = CohortEngine(stacking=way)
    stackable = all(together.stackable(each) for each in asked) and len(asked) > 1
    return ModelTiming(
        model=benches[0].model.spec.name,
        devices=len(devices),
        alone_ms=alone_ms,
        stacked_ms=_best_ms(together, asked) / len(asked) if stackable else None,
    )


def _fit(fleet: Fleet, device: Device, bench: Workbench) -> DeviceRequest:
    job = job_at(fleet.federation.spec, device.kit.number, 0, 0, device.held.counts.train)
    source = job.private_batches(max(job.local_steps, 1))
    return DeviceRequest(bench, Fit(source=source, objective=(CrossEntropy(),), optim=job.optim), job)


def _best_ms(engine: Engine, asked: Sequence[DeviceRequest]) -> float:
    return min(_timed_s(lambda: engine.serve(asked)) for _ in range(_REPEATS)) * 1000


def _timed_s(act: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    act()
    return time.perf_counter() - begun_s


# -- The times that the calibration of `stack = "auto"` and `processes = "auto"` measures for each kind of model ------

_WORTH_STACKING = 0.8
"""Stacking must take less than this share of the time that devices take one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTiming:
    """Milliseconds that one round's training of one device takes on this machine, for one kind of model."""

    model: str
    devices: int
    """Number of devices in the fleet that have this kind of model."""
    alone_ms: float
    stacked_ms: float | None
    """None if models of this kind cannot be stacked."""

    @property
    def stacks(self) -> bool:
        """Whether stacking is clearly faster."""
        return self.stacked_ms is not None and self.stacked_ms < _WORTH_STACKING * self.alone_ms

    @property
    def best_ms(self) -> float:
        """Time of the faster way."""
        return self.stacked_ms if self.stacks and self.stacked_ms is not None else self.alone_ms

    def __str__(self) -> str:
        also = "" if self.stacked_ms is None else f", {self.stacked_ms:.2f} ms stacked"
        return f"{self.model} {self.alone_ms:.2f} ms a device and round{also}"
