"""Federations under faults, in virtual time: faults of frames, and power cuts of devices and of the coordinator."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.ledger import Ledger
from edge_sdk.errors import RunFailed
from edge_sdk.protocol.frames import storage
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.fleet.fleet import Fleet, build_fleet

STORM = Faults(drop=0.2, duplicate=0.2, delay=0.5, delay_s=3.0)
CUTS = 8
DARK_S = (0.0, 0.001, 0.02, 1.0, 20.0)
"""Seconds for which a machine is without power."""
LIMIT_S = 1e6
"""Virtual seconds after which a run is called hung."""
PARAMS: dict[str, dict[str, Any]] = {"fedal": {"tau": 3}}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: a digest of every bit of the coordinator's state, the models and the accuracies."""

    digest: str
    virtual_s: float
    happened: Counter[str]
    error: str = ""


def survive(method: str, seeds: Iterable[int], processes: int) -> tuple[Outcome, list[Outcome], float]:
    """The run without faults, the run under each seed, and the seconds that it took."""
    begun_s = time.perf_counter()
    calm = run(method)
    with ProcessPoolExecutor(processes, initializer=_stand_back) as pool:
        found = list(pool.map(functools.partial(storm, method), seeds, chunksize=5))
    return calm, found, time.perf_counter() - begun_s


def storm(method: str, seed: int) -> Outcome:
    """A run under faults in which power is cut at random moments of its whole length."""
    return run(method, seed, STORM, CUTS)


def run(method: str, seed: int = 0, faults: Faults | None = None, cuts: int = 0) -> Outcome:
    """One run; what goes wrong beyond the faults is in `error`."""
    fleet = VirtualFleet(_built(method), ledger=Ledger(None), faults=faults, faults_seed=seed)
    if cuts:
        rng, length_s = np.random.default_rng([seed, 0x437574]), _length_s(method)
        machines = [*_built(method).federation.roster, "coordinator", "coordinator"]
        for who in rng.choice(machines, size=cuts):
            fleet.power_cut(str(who), at_s=rng.uniform(0, length_s), for_s=float(rng.choice(DARK_S)))
    fleet.clock.at(LIMIT_S, _hung)
    try:
        fleet.run()
    except Exception as error:  # noqa: BLE001  # told with its seed
        return Outcome("", fleet.clock.now_s, Counter(), f"{type(error).__name__}: {error}")
    return Outcome(_digest(fleet), fleet.clock.now_s, _happened(fleet), fleet.server.rounds.reason)


@functools.cache
def _built(method: str) -> Fleet:
    tables: dict[str, Any] = {
        "federation": {"name": "storm", "method": method, "rounds": 4, "devices": 6, "deadline_s": 10_000.0},
        "method": PARAMS.get(method, {}),
        "data": {"public": 300},
        "fleet": [{"count": 6, "model": "softmax"}],
    }
    if method in ("fedproto", "fedssa"):
        tables["federation"]["feature_dim"] = 64
    return build_fleet(settings.parse(tables, Path("storm.toml")))


@functools.cache
def _length_s(method: str) -> float:
    """How long a run under the same faults takes without power cuts."""
    return run(method, 0, STORM).virtual_s


def _digest(fleet: VirtualFleet) -> str:
    found = hashlib.sha256(storage.serialise(fleet.server.method_state))
    for device in fleet.devices:
        found.update(device.agent.bench.model.state_bytes())
        found.update(repr(fleet.server.record.last_accuracy(device.device.kit.id)).encode())
    return found.hexdigest()


def _happened(fleet: VirtualFleet) -> Counter[str]:
    happened = Counter(fleet.hub.fault_counts)
    happened["device"] = sum(device.agent.store.boot_epoch - 1 for device in fleet.devices)
    happened["coordinator"] = fleet.server.ledger.epoch - 1
    return happened


def _hung() -> None:
    raise RunFailed(f"not over after {LIMIT_S:g} virtual seconds")


def _stand_back() -> None:
    os.nice(10)
