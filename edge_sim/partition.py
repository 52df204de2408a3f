"""Who holds which samples."""

from __future__ import annotations

import numpy as np

from edge_sdk.errors import UsageError
from edge_sdk.objectives import Ints
from edge_sim.config import PartitionTable


def partition(table: PartitionTable, y: Ints, devices: int, classes: int, seed: int) -> list[Ints]:
    """Indices of each device's samples; every sample goes to exactly one.  Raises UsageError."""
    rng = np.random.default_rng([seed if table.seed is None else table.seed, 3])
    if table.kind == "iid":
        parts = [np.sort(part) for part in np.array_split(rng.permutation(len(y)), devices)]
    elif table.kind == "dirichlet":
        parts = _dirichlet(table, y, devices, rng)
    else:
        parts = _classes_per_device(table.classes_per_device, y, devices, classes, rng)
    poorest = min(len(part) for part in parts)
    if poorest < table.min_samples:
        raise UsageError(
            f"partition.min_samples: expected at least {table.min_samples} samples on each device, one would hold "
            f"{poorest}; use fewer devices or a smaller public part"
        )
    return parts


def _classes_per_device(held: int, y: Ints, devices: int, classes: int, rng: np.random.Generator) -> list[Ints]:
    """Each device holds `held` classes, each class is held about equally often and split evenly among its holders."""
    if held > classes:
        raise UsageError(f"partition.classes_per_device: expected at most the data set's {classes}, found {held}")
    if devices * held < classes:
        raise UsageError(
            f"partition.classes_per_device: {devices} devices with {held} each cannot hold all {classes} classes; "
            f"expected at least {-(-classes // devices)}, or more devices"
        )
    order, ranks = rng.permutation(classes), rng.permutation(devices)
    holders: list[list[int]] = [[] for _ in range(classes)]
    for device in range(devices):
        for i in range(held):
            holders[order[(int(ranks[device]) * held + i) % classes]].append(device)
    parts: list[list[int]] = [[] for _ in range(devices)]
    for k in range(classes):
        samples = rng.permutation(np.flatnonzero(y == k))
        for device, share in zip(holders[k], np.array_split(samples, len(holders[k])), strict=True):
            parts[device].extend(int(i) for i in share)
    return [np.sort(np.array(part, np.int64)) for part in parts]


DIRICHLET_TRIES = 1000
"""Draws before a partition with enough samples on every device is called impossible."""


def _dirichlet(table: PartitionTable, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Each class is dealt out in shares drawn from Dirichlet(alpha); drawn again until every device has enough."""
    for _ in range(DIRICHLET_TRIES):
        parts: list[list[int]] = [[] for _ in range(devices)]
        for k in np.unique(y):
            samples = rng.permutation(np.flatnonzero(y == k))
            cuts = (np.cumsum(rng.dirichlet([table.alpha] * devices))[:-1] * len(samples)).astype(np.int64)
            for device, share in enumerate(np.split(samples, cuts)):
                parts[device].extend(int(i) for i in share)
        if min(map(len, parts)) >= table.min_samples:
            return [np.sort(np.array(part, np.int64)) for part in parts]
    raise UsageError(
        f"partition.alpha: no draw of Dirichlet({table.alpha}) gave each of {devices} devices {table.min_samples} "
        "samples; raise it, or lower min_samples or the number of devices"
    )
