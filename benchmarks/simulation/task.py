"""The task that all sides are timed on: who holds what, which mini-batches, and how a timing is told.

Digits or MNIST, a Dirichlet partition, one local epoch of 32 samples a batch, SGD; everybody takes part in every round.
The bare loop gets the very mini-batches of the simulated devices.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from nets import FEATURES, FLEETS

ROUNDS = int(os.environ.get("EDGE_ROUNDS", "11"))
"""Number of rounds; the last one is not timed, because devices always evaluate their models in it."""
RATE = 0.05
BATCH = 32
EVERY = int(os.environ.get("EDGE_EVERY", str(10**6)))
"""Rounds between two evaluations; by default the timed rounds have none."""
RUNS: Mapping[str, Mapping[str, Any]] = {
    "exact": {},
    "cohort": {"stack": True},
    "shards": {"processes": 2, "stack": True},
    "auto": {"processes": "auto", "stack": "auto"},
    "ray": {"processes": 2, "cluster": "local", "stack": True},
}
"""The keys of [run], by the name that the page has for them."""
DEVICE = os.environ.get("EDGE_DEVICE", "cpu")
"""The torch device of the nets: cpu or cuda:N."""


@dataclass(frozen=True)
class Timing:
    """What one process measured of one run."""

    ms_per_device_round: float
    """The median over the rounds after the first."""
    cpu_ms_per_device_round: float
    """The same of this process's computing time, which others on the machine disturb less; without its children."""
    first_round_s: float
    """From the start of the process to the end of the first round."""
    peak_mib: float
    """Peak memory of this process and its children."""
    child_cpu_ms_per_device_round: float = 0.0
    """Computing time of the child process that computed most."""


def tables(method: str, fleet: str, devices: int, *, npz: str = "", engine: str = "") -> dict[str, Any]:
    """Return the tables of the run's TOML."""
    families = [f"nets:{family}" for family in FLEETS[fleet]]
    data: dict[str, Any] = {"source": "digits", "test_fraction": 0.2, "public": 0}
    partition: dict[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "min_samples": 4}
    if npz:
        data = {"source": "npz", "path": npz, "train_samples": 60 * devices, "test_samples": 1000, "public": 0}
        partition = {"kind": "iid"}
    return {
        "federation": {
            "name": "bench",
            "method": method,
            "devices": devices,
            "rounds": ROUNDS,
            "seed": 0,
            "feature_dim": FEATURES[fleet],
        },
        "train": {
            "optimiser": "sgd",
            "learning_rate": RATE,
            "batch_size": BATCH,
            "local_epochs": 1,
            "evaluate_every": EVERY,
        },
        "data": data,
        "partition": partition,
        "fleet": [{"count": devices, "model": "cycle:" + ",".join(families)}],
        "run": {"standalone": False, **RUNS[engine or "exact"], **_where(FLEETS[fleet])},
    }


def _where(nets: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the torch device: on a GPU all nets stack, on a CPU dense nets only."""
    if DEVICE != "cpu":
        return {"device": DEVICE}
    if os.environ.get("EDGE_STACKED") == "off":
        return {"stacked": []}
    return {"stacked": [net for net in nets if net == "mlp"]}


def peak_mib(children: int = 0) -> float:
    """Return the peak of this process plus `children` times that of its largest ended child."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (kib + children * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def now_s() -> tuple[float, float]:
    """The monotonic clock, and this process's computing time."""
    return time.monotonic(), time.process_time()


def children_s() -> dict[int, float]:
    """Computing time of each child process of this one, by process id; empty where the system does not tell."""
    found = {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            _, _, numbers = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")
            user, system = numbers.split()[11:13]
            found[int(pid)] = (int(user) + int(system)) * tick_s
    return found


def slowest_child_s(round_ends_s: Sequence[dict[int, float]]) -> float:
    """Return the computing time a round of the child that computed most, over the rounds after the first."""
    if len(round_ends_s) < 3:
        return 0.0
    first, last = round_ends_s[0], round_ends_s[ROUNDS - 2]
    return max((last[pid] - first.get(pid, 0.0) for pid in last), default=0.0) / (ROUNDS - 2)


def tell(
    round_ends_s: Sequence[tuple[float, float]],
    devices: int,
    started_s: float,
    children: int = 0,
    child_ends_s: Sequence[dict[int, float]] = (),
) -> None:
    """Print a Timing as JSON; round_ends_s as `now_s` gave them, started_s on the wall clock.

    child_ends_s: what `children_s` gave at the same moments.
    """
    offset_s = time.time() - time.monotonic()
    wall_s, cpu_s = ([b[i] - a[i] for a, b in pairwise(round_ends_s)][: ROUNDS - 2] for i in (0, 1))
    timing = Timing(
        ms_per_device_round=statistics.median(wall_s) * 1000 / devices,
        cpu_ms_per_device_round=statistics.median(cpu_s) * 1000 / devices,
        first_round_s=round_ends_s[0][0] + offset_s - started_s,
        peak_mib=peak_mib(children),
        child_cpu_ms_per_device_round=slowest_child_s(child_ends_s) * 1000 / devices,
    )
    sys.stdout.write(json.dumps(asdict(timing)) + "\n")
