"""The remote engine over a pool that lies in this process: who gets which request, and what becomes of losses."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge_sdk
from coordinator.report.summary import summary
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sdk.methods.requests import Fit
from edge_sim.config import settings
from edge_sim.engines.base import DeviceRequest
from edge_sim.engines.remote.engine import RemoteEngine, divided
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest, WorkerSetup, to_pickle
from edge_sim.engines.remote.ray_worker import ModelState, RayWorker
from edge_sim.engines.remote.tracked_model import TrackedModel
from edge_sim.fleet.fleet import Fleet, build_fleet


class LocalPool:
    """Two workers in this process, given what the actors of Ray are given."""

    def __init__(self, fleet: Fleet, *, loses: Sequence[int] = (), keeps_fits: bool = False) -> None:
        """loses: which batches, counted from 1, a worker ends at.  keeps_fits: no worker takes a Fit."""
        self.count, self.peak_bytes, self.pids = 2, 0, (1, 2)
        self.batches, self.started, self.requests = 0, 0, list[RemoteRequest]()
        self._fleet, self._loses, self._keeps_fits = fleet, loses, keeps_fits
        self._models: dict[int, TrackedModel] = {}
        self._workers: dict[int, RayWorker] = {}
        self._sent: deque[tuple[int, bytes]] = deque()

    def attach(self, number: int, bench: Workbench) -> bool:
        bench.model = self._models[number] = TrackedModel(bench.model)
        return True

    def divide(self, owners: Mapping[int, int]) -> None:
        self._owners = owners

    def start(self, worker: int) -> None:
        own = [number for number, owner in self._owners.items() if owner == worker]
        devices, spec = tuple(self._fleet.devices[number] for number in own), self._fleet.federation.spec
        self._workers[worker] = RayWorker()
        setup = WorkerSetup(devices=devices, spec=spec, stacked=frozenset(), modules=())
        self._workers[worker].begin(edge_sdk.__version__, to_pickle(setup))
        self._sent = deque(each for each in self._sent if each[0] != worker)
        self.started += 1
        for number in own:
            self._models[number].changed = True

    def takes(self, asked: DeviceRequest) -> bool:
        return not (self._keeps_fits and isinstance(asked.request, Fit))

    def outgoing(self, asked: DeviceRequest) -> ModelState:
        return ModelState(state=self._models[asked.job.number].state_bytes(), trains=True)

    def incoming(self, asked: DeviceRequest, model: bytes | None) -> None:
        if model is not None:
            self._models[asked.job.number].learned(model)

    def send(self, worker: int, requests: Sequence[RemoteRequest]) -> None:
        self.requests += requests
        self._sent.append((worker, to_pickle(requests)))

    def receive(self) -> tuple[int, list[RemoteAnswer] | None]:
        worker, requests = self._sent.popleft()
        self.batches += 1
        if self.batches in self._loses:
            return worker, None
        found: list[RemoteAnswer] = pickle.loads(self._workers[worker].serve(requests))
        return worker, found

    def close(self) -> None:
        self._workers = {}


def finished(pictures: Path, **pool: Any) -> tuple[fleets.Run, fleets.Run, LocalPool]:
    """The run with the exact engine, and with workers."""
    config = fleets.config(pictures, "fedal")
    alone = fleets.Run(config).finished()
    workers = LocalPool(alone.fleet, **pool)
    return alone, fleets.Run(alone.fleet, engine=RemoteEngine(workers)).finished(), workers


@pytest.mark.parametrize("lost", [(), (1,), (4, 9)])
def test_any_pool_gives_the_same_bits(pictures: Path, lost: tuple[int, ...]) -> None:
    alone, remote, pool = finished(pictures, loses=lost)
    assert remote.model_bytes == alone.model_bytes
    assert remote.coordinator_bytes == alone.coordinator_bytes
    assert summary(remote.result) == summary(alone.result)
    assert pool.started == 2 + len(lost)
    assert {type(each.request) for each in pool.requests} >= {Fit}


def test_what_no_worker_takes_is_computed_here(pictures: Path) -> None:
    alone, remote, pool = finished(pictures, keeps_fits=True)
    assert remote.model_bytes == alone.model_bytes
    assert pool.requests
    assert not any(isinstance(each.request, Fit) for each in pool.requests)


@pytest.mark.torch
@pytest.mark.parametrize("warm", [True, False])
def test_shares_are_measured_with_what_the_terms_have_kept(pictures: Path, warm: bool) -> None:
    """FedKF's term keeps a generator, which a copy of the term on its way to a worker does not have."""
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "fedkf", devices=2, feature_dim=6)
    tables["fleet"], tables["method"] = [{"count": 2, "model": "mlp"}], {"warm": warm}
    fleet = build_fleet(settings.parse(tables, Path("test.toml")))
    alone, remote = fleets.Run(fleet).finished(), fleets.Run(fleet, engine=RemoteEngine(LocalPool(fleet))).finished()
    measured, again = ([entry.instruments for entry in run.result.history] for run in (alone, remote))
    assert "share.private.data-free" in measured[-1]
    assert again == measured


def test_what_is_lost_again_and_again_ends_the_run(pictures: Path) -> None:
    with pytest.raises(RunFailed, match="ended twice"):
        finished(pictures, loses=range(1, 100))


@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 5))
def test_shares_cost_about_the_same(seed: int, devices: int, count: int) -> None:
    costs = dict(enumerate(np.random.default_rng(seed).uniform(1, 1e6, devices).tolist()))
    owners = divided(costs, count)
    assert owners.keys() == costs.keys()
    loads = [sum(cost for number, cost in costs.items() if owners[number] == worker) for worker in range(count)]
    assert max(loads) - min(loads) <= max(costs.values(), default=0.0) * (1 + 1e-9)
