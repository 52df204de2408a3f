"""The partition of the samples over the devices: several random draws, each repeatable by its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError
from edge_sim.config.settings import PartitionTable


def partition(
    table: PartitionTable, y: Ints, devices: int, classes: int, seed: int, *, users: NDArray[Any] | None = None
) -> list[Ints]:
    """Return the ascending indices of each device's samples; every sample goes to exactly one device.

    y (n,) labels; users (n,) who recorded each sample, for kind = "user".  Raises UsageError.
    """
    rng = np.random.default_rng([seed if table.seed is None else table.seed, 3])
    if table.kind == "iid":
        parts = [np.sort(part) for part in np.array_split(rng.permutation(len(y)), devices)]
    elif table.kind == "dirichlet":
        parts = _dirichlet(table, y, devices, rng)
    elif table.kind == "quantity_skew":
        parts = _quantity_skew(table, len(y), devices, rng)
    elif table.kind == "user":
        parts = _by_user(users, devices, rng)
    else:
        parts = _classes_per_device(table.classes_per_device, y, devices, classes, rng)
    check_least(parts, table.min_samples, "use fewer devices or a smaller public part")
    return parts


def check_least(parts: Sequence[Ints], least: int, remedy: str) -> None:
    """Raise UsageError for a device with fewer samples than partition.min_samples."""
    poorest = min(len(part) for part in parts)
    if poorest < least:
        raise UsageError(
            f"partition.min_samples: expected at least {least} samples on each device, "
            f"one would hold {poorest}; {remedy}"
        )


def _classes_per_device(held: int, y: Ints, devices: int, classes: int, rng: np.random.Generator) -> list[Ints]:
    """Give each device `held` classes; each class has about equally many holders and is split evenly among them."""
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
    pieces: list[list[Ints]] = [[] for _ in range(devices)]
    for k in range(classes):
        samples = rng.permutation(np.flatnonzero(y == k))
        for device, share in zip(holders[k], np.array_split(samples, len(holders[k])), strict=True):
            pieces[device].append(share)
    return [np.sort(np.concatenate(own)) for own in pieces]


DIRICHLET_TRIES = 1000
"""Number of draws without enough samples on every device after which the partition is reported as impossible."""


def _dirichlet(table: PartitionTable, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Divide each class in shares drawn from Dirichlet(alpha); draw again until every device has enough samples."""
    for _ in range(DIRICHLET_TRIES):
        pieces: list[list[Ints]] = [[] for _ in range(devices)]
        for k in np.unique(y):
            samples = rng.permutation(np.flatnonzero(y == k))
            cuts = (np.cumsum(rng.dirichlet([table.alpha] * devices))[:-1] * len(samples)).astype(np.int64)
            for own, share in zip(pieces, np.split(samples, cuts), strict=True):
                own.append(share)
        if min(sum(map(len, own)) for own in pieces) >= table.min_samples:
            return [np.sort(np.concatenate(own)) for own in pieces]
    raise UsageError(
        f"partition.alpha: no draw of Dirichlet({table.alpha}) gave each of {devices} devices {table.min_samples} "
        "samples; raise it, or lower min_samples or the number of devices"
    )


def _quantity_skew(table: PartitionTable, count: int, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Draw sizes from Dirichlet(alpha), on top of min_samples for each device; classes are not balanced."""
    spare = count - devices * table.min_samples
    if spare < 0:
        raise UsageError(
            f"partition.min_samples: {count} samples are fewer than {table.min_samples} for each of {devices} devices"
        )
    extra = np.floor(np.cumsum(rng.dirichlet([table.alpha] * devices)[:-1]) * spare).astype(np.int64)
    cuts = extra + table.min_samples * np.arange(1, devices)
    return [np.sort(part) for part in np.split(rng.permutation(count), cuts)]


def _by_user(users: NDArray[Any] | None, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Keep each user's samples together; with more users than devices, a device gets several users, at random."""
    if users is None:
        raise UsageError('partition.kind: "user" needs the array user_train in an npz file; this data set has none')
    names = np.unique(users)
    if len(names) < devices:
        raise UsageError(f"partition.kind: {len(names)} users cannot be dealt out to {devices} devices; use fewer")
    order = names if len(names) == devices else rng.permutation(names)
    return [np.flatnonzero(np.isin(users, own)) for own in np.array_split(order, devices)]
