"""The engines that need torch, as a run's table asks for them, and the calibration that chooses between them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from edge_sdk.methods.requests import Fit
from edge_sdk.models.optim import moment_count
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.workbench import Workbench
from edge_sim import fleet as fleets
from edge_sim.config import CPU, RunTable
from edge_sim.engine import Asked, Exact, Together, job_at
from edge_sim.engines import Measured
from edge_sim.fleet import Device, Fleet
from edge_sim.torch_any_nets import AnyNets
from edge_sim.torch_cohort import Cohort
from edge_sim.torch_dense import Products
from edge_sim.torch_places import Places
from edge_sim.torch_stack import Stacking
from edge_sim.torch_threads import one_thread
from edge_sim.torch_workers import Workers

_REPEATS = 3
_A_FEW = 10
"""Devices that are timed one by one."""


def cohort(table: RunTable, fleet: Fleet) -> Cohort:
    """Stacking in this process; a GPU is given one stack after the other, and is busy with it."""
    names = None if table.stacked is None else frozenset(table.stacked)
    threads = (table.workers or os.cpu_count() or 1) if table.device == CPU else 1
    return Cohort(names, places(table, fleet), threads, stacking(table))


def stacking(table: RunTable) -> Stacking:
    """Any nets on a GPU; on a CPU dense ones alone: stacked convolutions were slower there."""
    return Products() if table.device == CPU else AnyNets()


def workers(table: RunTable, fleet: Fleet) -> Workers:
    """Processes, their weights in memory or, above the table's cap, on disk."""
    count = table.workers or os.cpu_count() or 1
    return Workers(fleet, min(count, len(fleet.devices)), places(table, fleet), frozenset(table.stacked or ()))


def places(table: RunTable, fleet: Fleet) -> Places:
    """Memory for weights and for the moments of the federation's optimiser; above the table's cap, on disk."""
    train = fleet.federation.spec.train
    optim = Optim(kind=train.optimiser, learning_rate=train.learning_rate, momentum=train.momentum)
    spill = None if table.memory_bytes is None else Path(tempfile.gettempdir())
    device = None if table.device == CPU else torch.device(table.device)
    return Places(moment_count(optim), spill, table.memory_bytes or 0, device)


def calibrated(table: RunTable, fleet: Fleet) -> list[Measured]:
    """What a round's training costs each kind of model here, alone and stacked, on models that are thrown away."""
    one_thread()
    kinds: dict[tuple[object, ...], list[Device]] = {}
    for device in fleet.devices:
        if fleets.needs_torch(device.kit.family):
            kit = device.kit
            kinds.setdefault((kit.family, kit.size, kit.feature_dim), []).append(device)
    return [_measured(fleet, devices, stacking(table)) for devices in kinds.values()]


def _measured(fleet: Fleet, devices: Sequence[Device], way: Stacking) -> Measured:
    benches = [Workbench(each.kit.model(each.public), each.data, each.public) for each in devices[: way.at_a_time]]
    asked = [_fit(fleet, device, bench) for device, bench in zip(devices, benches, strict=False)]
    few = asked[:_A_FEW]
    alone_ms = _best_ms(Exact(), few) / len(few)
    together = Cohort(stacking=way)
    stackable = all(together.stackable(each) for each in asked) and len(asked) > 1
    return Measured(
        model=benches[0].model.spec.name,
        devices=len(devices),
        alone_ms=alone_ms,
        stacked_ms=_best_ms(together, asked) / len(asked) if stackable else None,
    )


def _fit(fleet: Fleet, device: Device, bench: Workbench) -> Asked:
    job = job_at(fleet.federation.spec, device.kit.number, 0, 0, len(device.data.train))
    source = job.private_batches(max(job.local_steps, 1))
    return Asked(bench, Fit(source=source, objective=(CrossEntropy(),), optim=job.optim), job)


def _best_ms(engine: Together, asked: Sequence[Asked]) -> float:
    return min(_timed_s(lambda: engine.serve(asked)) for _ in range(_REPEATS)) * 1000


def _timed_s(act: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    act()
    return time.perf_counter() - begun_s
