"""The partition of the samples over the devices: random draws, each repeatable by its seed, and files.

A file lets other runs and other programs use the same partition:

    {"version": 1, "data": NAME, "sha256": HEX, "seed": S, "samples": N, "devices": {"device-00": [ROW, ...], ...}}

A row counts the training samples as the source gives them (of an npz file: the rows of x_train).  A file written by
hand needs only `devices`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.errors import UsageError
from edge_sim.config.settings import Config, PartitionTable
from edge_sim.data.datasets import Dataset, public_count

SIZES: Mapping[str, tuple[int, int]] = {
    "digits": (1797, 10),
    "mnist": (60_000, 10),
    "fashion-mnist": (60_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "svhn": (73_257, 10),
}
"""Training samples and classes of data sets that are always the same; of digits with those of the test."""


EVEN = ("iid", "dirichlet-equal")
"""The kinds of partition that give all devices equally many samples."""


def partition(
    table: PartitionTable, y: Ints, devices: int, classes: int, seed: int, *, users: NDArray[Any] | None = None
) -> list[Ints]:
    """Return the ascending indices of each device's samples; every sample goes to exactly one device.

    y (n,) labels; users (n,) who recorded each sample, for kind = "user".  Raises UsageError.
    """
    if len(y) < devices * table.min_samples:
        raise UsageError(
            f"partition.min_samples: {devices:,} devices with {table.min_samples} samples each need "
            f"{devices * table.min_samples:,}, and there are {len(y):,} for them; use fewer devices or a smaller "
            "public part"
        )
    rng = np.random.default_rng([seed if table.seed is None else table.seed, 3])
    if table.kind == "iid":
        parts = [np.sort(part) for part in np.array_split(rng.permutation(len(y)), devices)]
    elif table.kind == "dirichlet":
        parts = _dirichlet(table, y, devices, rng)
    elif table.kind == "dirichlet-per-device":
        parts = _dirichlet_per_device(table, y, devices, rng)
    elif table.kind == "dirichlet-equal":
        parts = _dirichlet_equal(table.alpha, y, devices, rng)
    elif table.kind == "shards":
        parts = _shards(table.shards_per_device, y, devices, rng)
    elif table.kind == "quantity_skew":
        parts = _quantity_skew(table, len(y), devices, rng)
    elif table.kind == "user":
        parts = _by_user(users, devices, rng)
    else:
        parts = _classes_per_device(table.classes_per_device, y, devices, classes, rng)
    even = "" if table.kind in EVEN else '; kind = "iid" gives all equally many'
    check_least(parts, table.min_samples, f"lower it, or use fewer devices or a smaller public part{even}")
    return parts


def check_before_data(config: Config) -> None:
    """Raise UsageError for a partition that cannot be, of a data set whose size is known before it is read."""
    table, known = config.partition, SIZES.get(config.data.source)
    if known is None or table.file is not None:
        return
    samples, classes = known
    there = config.data.train_samples or samples
    left = there - (public_count(config.data.public, there) if config.takes_public else 0)
    devices, held = config.federation.devices, table.classes_per_device
    where = f"{config.file}: partition"
    if left < devices * table.min_samples:
        raise UsageError(
            f"{where}.min_samples: {devices} devices with {table.min_samples} samples each need "
            f"{devices * table.min_samples}, {config.data.source} leaves {max(0, left)} for them"
        )
    if table.kind == "classes_per_device" and held > classes:
        raise UsageError(f"{where}.classes_per_device: expected at most the data set's {classes}, found {held}")
    if table.kind == "classes_per_device" and devices * held < classes:
        raise UsageError(
            f"{where}.classes_per_device: {devices} devices with {held} each cannot hold all {classes} classes; "
            f"expected at least {-(-classes // devices)}, or more devices"
        )
    if table.kind == "user":
        raise UsageError(
            f'{where}.kind: "user" needs a data set that names who recorded each sample, {config.data.source} does not'
        )


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


DIRICHLET_TRIES, DIRICHLET_DEALT = 1000, 2_000_000
"""The number of draws without enough samples on every device after which the partition is reported as impossible, and
the maximum number of devices that all draws together may deal to, which takes a minute."""
HOPELESS_DRAWS, HOPELESS_SHORT = 3, 40
"""Refuse after so many draws that each left more than so many devices short of samples: another draw leaves none short
about as rarely as a Poisson variable of mean 40 is 0, once in 10^17."""
LEAST_SHARE = 1e-12
"""Added to each class's share in a mix, so that classes without a share can be dealt out, too."""


def _dirichlet(table: PartitionTable, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Divide each class in shares drawn from Dirichlet(alpha); draw again until every device has enough samples."""

    def draw() -> Ints:
        owners = np.empty(len(y), np.int64)
        for k in np.unique(y):
            samples = rng.permutation(np.flatnonzero(y == k))
            _divide(samples, rng.dirichlet([table.alpha] * devices), owners)
        return owners

    return _until_enough(draw, table, devices)


def _dirichlet_per_device(table: PartitionTable, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Draw each device's mix of classes from Dirichlet(alpha), and divide each class in proportion to the mixes."""

    def draw() -> Ints:
        classes, owners = np.unique(y), np.empty(len(y), np.int64)
        mixes = rng.dirichlet([table.alpha] * len(classes), devices) + LEAST_SHARE  # (devices, classes)
        for at, k in enumerate(classes):
            _divide(rng.permutation(np.flatnonzero(y == k)), mixes[:, at] / mixes[:, at].sum(), owners)
        return owners

    return _until_enough(draw, table, devices)


def _divide(samples: Ints, shares: NDArray[np.float64], owners: Ints) -> None:
    """Give each device its share of the samples of one class: write its number for them into owners (n,).

    shares (devices,) add up to 1.
    """
    cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(np.int64)
    cuts = np.minimum(cuts, len(samples))  # their sum may be rounded to more than 1
    owners[samples] = np.repeat(np.arange(len(shares)), np.diff(cuts, prepend=0, append=len(samples)))


def _until_enough(draw: Callable[[], Ints], table: PartitionTable, devices: int) -> list[Ints]:
    """Draw the owner of each sample until every device has partition.min_samples.  Raises UsageError."""
    fewest_short = devices
    for drawn in range(1, min(DIRICHLET_TRIES, DIRICHLET_DEALT // devices + 1) + 1):
        owners = draw()
        sizes = np.bincount(owners, minlength=devices)
        short = int((sizes < table.min_samples).sum())
        if not short:
            return np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])
        fewest_short = min(fewest_short, short)
        if drawn >= HOPELESS_DRAWS and fewest_short > HOPELESS_SHORT:
            break
    raise UsageError(
        f"partition.alpha: no draw of Dirichlet({table.alpha}) gave each of {devices} devices {table.min_samples} "
        "samples; raise it, lower min_samples or the number of devices, or take kind = "
        '"dirichlet-equal", which gives all equally many'
    )


def _dirichlet_equal(alpha: float, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Draw each device's mix of classes from Dirichlet(alpha); sizes differ by one sample at most.

    Devices choose in random order; if a class is used up, they continue with the others of their mix, and the last ones
    take what is left.
    """
    classes = np.unique(y)
    left = [list(rng.permutation(np.flatnonzero(y == k))) for k in classes]
    sizes = [len(part) for part in np.array_split(np.arange(len(y)), devices)]
    mixes = rng.dirichlet([alpha] * len(classes), devices) + LEAST_SHARE  # (devices, classes)
    parts: list[Ints] = [np.zeros(0, np.int64)] * devices
    for device in rng.permutation(devices):
        own: list[int] = []
        while len(own) < sizes[device]:
            there = np.array([len(samples) for samples in left])
            shares = np.where(there > 0, mixes[device], 0)
            counts = np.minimum(rng.multinomial(sizes[device] - len(own), shares / shares.sum()), there)
            for samples, count in zip(left, counts, strict=True):
                own += [samples.pop() for _ in range(count)]
        parts[device] = np.sort(np.array(own, np.int64))
    return parts


def _shards(held: int, y: Ints, devices: int, rng: np.random.Generator) -> list[Ints]:
    """Sort the samples by class, cut them into equal shards, and deal out `held` of them to each device."""
    if devices * held > len(y):
        raise UsageError(
            f"partition.shards_per_device: {len(y)} samples cannot be cut into {held} shards for each of "
            f"{devices} devices"
        )
    order = rng.permutation(len(y))
    shards = np.array_split(order[np.argsort(y[order], kind="stable")], devices * held)
    dealt = rng.permutation(devices * held).reshape(devices, held)
    return [np.sort(np.concatenate([shards[at] for at in own])) for own in dealt]


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


VERSION = 1
SHOWN = 5
"""Largest number of wrong rows that an error names."""


def write_partition(path: Path, dataset: Dataset, ids: Sequence[str], parts: Sequence[Ints]) -> None:
    """Write a partition to a file; parts: indices of the private samples.  Raises UsageError."""
    table = {
        "version": VERSION,
        "data": dataset.name,
        "sha256": dataset.sha256,
        "seed": dataset.seed,
        "samples": len(dataset.private),
        "devices": {name: dataset.rows[part].tolist() for name, part in zip(ids, parts, strict=True)},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"partition.export: {path}: cannot be written: {error}") from None


def read_partition(path: Path, dataset: Dataset, ids: Sequence[str], least: int) -> list[Ints]:
    """Return each device's ascending indices of private samples.  Samples that the file leaves out are not used.

    Raises UsageError where the file was made for other data or devices, or names rows that are not there, are in the
    public set, or belong to two devices; the message names the rows.
    """
    table = _table(path)
    if table.get("sha256") not in (None, dataset.sha256):
        raise UsageError(
            f"{path}: made for other data ({table.get('data', 'unnamed')}, data.seed = {table.get('seed', 'unknown')}) "
            f"than {dataset.name} with data.seed = {dataset.seed}: its rows would be other samples here"
        )
    devices = table["devices"]
    if set(devices) != set(ids):
        odd = sorted(set(devices) ^ set(ids))
        raise UsageError(
            f"{path}: holds {len(devices)} devices for the {len(ids)} of this federation; "
            f"{', '.join(odd[:SHOWN])} {'is' if len(odd) == 1 else 'are'} in one of them only"
        )
    owned = {name: _rows(path, name, devices[name]) for name in ids}
    place = _places(path, dataset, owned)
    parts = [place[owned[name]] for name in ids]
    check_least(parts, least, f"see {path}")
    return [np.sort(part) for part in parts]


def _table(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"partition.file: {path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"partition.file: {path}: not a readable JSON file: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("devices"), dict):
        raise UsageError(f'{path}: expected {{"devices": {{"device-00": [row, ...], ...}}}}')
    if table.get("version", VERSION) != VERSION:
        raise UsageError(f"{path}: version {table['version']}, this side reads {VERSION}: upgrade it")
    return table


def _rows(path: Path, name: str, plain: Any) -> Ints:
    if not isinstance(plain, list) or any(type(row) is not int or abs(row) >= 2**62 for row in plain):
        raise UsageError(f"{path}: {name}: expected a list of row numbers")
    return np.array(plain, np.int64)


def _places(path: Path, dataset: Dataset, owned: dict[str, Ints]) -> Ints:
    """Return a map from row to index of the private sample, after checking every row that the file names."""
    everything = np.concatenate([*owned.values(), np.zeros(0, np.int64)])
    _refuse(path, owned, everything[(everything < 0) | (everything >= dataset.source_samples)], "not in the data")
    names, counts = np.unique(everything, return_counts=True)
    _refuse(path, owned, names[counts > 1], "named more than once")
    place = np.full(dataset.source_samples, -1, np.int64)
    place[dataset.rows] = np.arange(len(dataset.rows))
    _refuse(path, owned, names[place[names] < 0], "in the public set or left out by data.train_samples")
    return place


def _refuse(path: Path, owned: dict[str, Ints], rows: Ints, why: str) -> None:
    """Raise UsageError that names some of these rows, and a device that has them, if there are any."""
    if not len(rows):
        return
    holder = next(name for name, own in owned.items() if np.isin(rows, own).any())
    shown = ", ".join(str(row) for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    raise UsageError(
        f"{path}: {'row' if len(rows) == 1 else 'rows'} {shown}{more} ({holder} has some): {why}; "
        "use the [data] section that the file was made with"
    )
