"""On a local Ray of two workers a run is the same to the bit; what an actor loses is computed anew."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.util
import os
import pickle
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import fleets
import numpy as np
import pytest
from laws import EQUIPMENT, spec_of, uploads

import edge_sdk
from coordinator.config import to_toml
from coordinator.ledger import Ledger
from coordinator.record.result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.report.summary import summary
from coordinator.serving.equipment import ready_method
from coordinator.serving.server import RunObserver
from edge_sdk import cli
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import UsageError
from edge_sdk.methods.registry import load_method, method_names
from edge_sdk.methods.requests import Evaluate, Fit
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol import storage
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.config.settings import Config, RunTable
from edge_sim.engines import choice
from edge_sim.engines.base import DeviceRequest, job_at, serve_alone
from edge_sim.engines.remote import ray_address
from edge_sim.engines.remote.messages import RemoteRequest, WorkerSetup, to_pickle
from edge_sim.engines.remote.ray_worker import ModelState, RayWorker
from edge_sim.engines.remote.tracked_model import TrackedModel
from edge_sim.fleet.fleet import Fleet

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'edge-sdk[ray]'", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # Ray starts a process for each worker: slow on busy cores
SMALL = {"public_batch": 4, "max_devices": 8, "tau": 2, "distill_batch": 4, "samples_per_class": 2, "steps": 2}
TABLE = RunTable(engine="ray")
TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """One Ray for all tests here, its token not in the home folder; engines find it running.

    A process that runs tests of other files in between starts Ray again, with the token that Ray keeps in memory.
    Processes of one run of the tests take turns: two that start a Ray at once may choose the same port.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        (tmp_path_factory.getbasetemp().parent / "ray.lock").open("w", encoding="utf-8") as turn,
    ):
        fcntl.flock(turn, fcntl.LOCK_EX)
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.delenv("RAY_ADDRESS", raising=False)
        address = ray_address.find_ray_address(TABLE)
        import ray  # Ray learns what it may listen on before it is loaded

        from edge_sim.engines.remote.ray_actor_pool import connect  # likewise

        assert connect(address, workers=0)
        yield ray
        ray.shutdown()


def opened(config: Config, fleet: Fleet) -> Any:
    return choice.open_engine(config.run, fleet)


def chosen(pictures: Path, method: str, models: str, **run: Any) -> Config:
    tables = fleets.tables(pictures, method, feature_dim=6 if "mlp" in models else fleets.WIDTH)
    tables["fleet"] = [{"count": 6, "model": models}]
    tables["train"] |= {"optimiser": "adam", "evaluate_every": 2}
    tables["run"] |= {"engine": "ray", **run}
    return settings.parse(tables, Path("test.toml"))


TORCH = pytest.mark.torch


@TORCH
@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.usefixtures("ray")
def test_actors_compute_the_same_bits(pictures: Path) -> None:
    config = chosen(pictures, "fedal", "cycle:mlp,cnn,softmax")
    alone, fleet = fleets.Run(config).finished(), fleets.Run(config).fleet
    engine = opened(config, fleet)
    divided = fleets.Run(fleet, engine=engine).finished()
    engine.close()
    assert divided.model_bytes == alone.model_bytes
    assert divided.coordinator_bytes == alone.coordinator_bytes
    assert divided.clock.now_s == alone.clock.now_s
    assert summary(divided.result) == summary(alone.result)
    assert engine.peak_bytes > 2 * 10_000_000


class Killer(RunObserver):
    """Ends an actor's process after the first round."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.killed: list[int] = []

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002
        if result.round == 1:
            self.killed.append(self.engine.pids[0])
            os.kill(self.killed[0], signal.SIGKILL)


@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.usefixtures("ray")
def test_a_killed_actor_is_replaced_and_uploads_are_added_up_on_ray(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_sim.engines.remote import ray_fold  # likewise

    parts: list[int] = []
    finish = ray_fold.RayFoldedMethod.finish

    def counted(self: Any, spec: FederationSpec, state: Any, at: ExchangeId, aggregate: Any) -> Any:
        parts.append(len(aggregate.sums))
        return finish(self, spec, state, at, aggregate)

    monkeypatch.setattr(ray_fold, "TOGETHER", 4)
    monkeypatch.setattr(ray_fold.RayFoldedMethod, "finish", counted)
    config = chosen(pictures, "fedavg", "softmax", ray_fold=True)
    alone, fleet, killer = fleets.Run(config).finished(), fleets.Run(config).fleet, Killer()
    killer.engine = opened(config, fleet)
    wrap_method = choice.method_wrapper(config.run)
    again = VirtualFleet(fleet, ledger=Ledger(None), engine=killer.engine, observer=killer, wrap_method=wrap_method)
    again.run()
    assert parts == [1, 1, 1]
    assert killer.killed
    assert killer.killed[0] not in killer.engine.pids
    killer.engine.close()
    assert {d.device.kit.id: d.agent.bench.model.state_bytes() for d in again.devices} == alone.model_bytes
    assert storage.serialise(again.server.method_state) == alone.coordinator_bytes


@pytest.mark.parametrize("name", method_names())
def test_every_method_folds_elsewhere(name: str) -> None:
    """What a task is given and gives back travels as bytes."""
    if name in ("fedal", "fedgen", "feddf_al"):
        pytest.importorskip("torch")
    from edge_sim.engines.remote.ray_fold import fold  # likewise

    spec, at = spec_of(load_method(name), **SMALL), ExchangeId(0, 0)
    method = ready_method(spec, EQUIPMENT)
    ups = uploads(spec, at, 5, seed=1)
    parts = [pickle.loads(fold(name, method.table, to_pickle(part))) for part in (ups[:2], ups[2:4])]
    merged = reduce(method.merge, parts, reduce(method.add, ups[4:], method.zero()))
    whole = reduce(method.add, ups, method.zero())
    state = method.begin(spec)
    assert storage.serialise(method.finish(spec, state, at, merged)) == storage.serialise(
        method.finish(spec, state, at, whole)
    )


# -- without Ray: the worker's side, and the model on this side --------------------------------------------------------


def begun(config: Config, *stacked: str) -> tuple[Fleet, RayWorker]:
    fleet, worker = fleets.Run(config).fleet, RayWorker()
    setup = WorkerSetup(
        devices=fleet.devices[:2], spec=fleet.federation.spec, stacked=frozenset(stacked), modules=("/nowhere-else",)
    )
    worker.begin(edge_sdk.__version__, to_pickle(setup))
    return fleet, worker


def test_a_worker_trains_as_the_bench_here_does(pictures: Path) -> None:
    fleet, worker = begun(chosen(pictures, "fedproto", "softmax"))
    device = fleet.devices[1]
    bench = Workbench(device.kit.model(None), device.data, discloses_classes=True)
    tracked = bench.model = TrackedModel(bench.model)
    job = job_at(fleet.federation.spec, 1, 0, 0, len(device.data.train))
    fit = Fit(source=job.private_batches(3), objective=(CrossEntropy(),), optim=job.optim)
    before = ModelState(state=tracked.state_bytes(), trains=True)
    request = RemoteRequest(number=1, request=fit, round=0, exchange=0, model=before)
    (found,) = pickle.loads(worker.serve(to_pickle([request])))
    assert found.answer == serve_alone(DeviceRequest(bench, fit, job))
    assert found.model == tracked.state_bytes()
    assert found.spent == bench.meter
    (again,) = pickle.loads(worker.serve(to_pickle([dataclasses.replace(request, request=Evaluate(0), model=None)])))
    assert again.answer == serve_alone(DeviceRequest(bench, Evaluate(0), job))
    assert again.model is None


@TORCH
def test_a_worker_stacks_what_it_is_told_to(pictures: Path) -> None:
    pytest.importorskip("torch")
    config = chosen(pictures, "fedproto", "mlp")
    (fleet, alone), (_, stacking) = begun(config), begun(config, "mlp")
    requests = []
    for device in fleet.devices[:2]:
        job = job_at(fleet.federation.spec, device.kit.number, 0, 0, len(device.data.train))
        fit = Fit(source=job.private_batches(3), objective=(CrossEntropy(),), optim=job.optim)
        requests.append(RemoteRequest(number=job.number, request=fit, round=0, exchange=0, model=None))
    answers = zip(*(pickle.loads(worker.serve(to_pickle(requests))) for worker in (alone, stacking)), strict=True)
    for device, each in zip(fleet.devices, answers, strict=False):
        weights = []
        for found in each:
            model = device.kit.model(None)
            model.load_state(found.model)
            weights.append(model.weights())
        np.testing.assert_allclose(*weights, atol=1e-5)
        assert not np.array_equal(weights[0], device.kit.model(None).weights())


def test_a_tracked_model_notes_what_changes_it(pictures: Path) -> None:
    device = fleets.Run(chosen(pictures, "fedproto", "softmax")).fleet.devices[0]
    model = device.kit.model(None)
    tracked, state, weights = TrackedModel(model), model.state_bytes(), model.weights()
    x = model.spec.preprocess(device.data.train.x)
    assert tracked.changed
    tracked.learned(state)
    np.testing.assert_array_equal(tracked.head(tracked.features(x)), tracked.logits(x))
    assert tracked.head_rows().size == tracked.head_mask().sum()
    assert not tracked.changed
    for change in (
        lambda: tracked.set_weights(weights + 1),
        lambda: tracked.set_head_rows(np.array([1]), model.head_rows()[:1]),
        lambda: tracked.load_state(state),
    ):
        tracked.learned(state)
        change()
        assert tracked.changed


def test_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"edge-sdk .*there, 9\.9\.9 here"):
        RayWorker().begin("9.9.9", b"")


# -- bad input ------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def simulated(pictures: Path, tmp_path: Path, *overrides: str) -> int:
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(fleets.tables(pictures)), encoding="utf-8")
    sets = [word for each in overrides for word in ("--set", each)]
    return cli.main(["simulate", str(file), "--engine", "ray", "--out", str(tmp_path / "out"), *sets])


def test_a_cluster_that_does_not_answer(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert simulated(pictures, tmp_path, f"run.ray_address={address}") == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert f"nothing answers at {address}" in line


@pytest.mark.usefixtures("ray")
def test_one_that_answers_and_is_no_ray_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def init(**_: Any) -> None:
        os.write(2, b"gcs_client.cc:210: Failed\n")  # as Ray's core does
        raise ConnectionError("Timed out")

    monkeypatch.setattr("edge_sim.engines.remote.ray_actor_pool.ray.is_initialized", lambda: False)
    monkeypatch.setattr("edge_sim.engines.remote.ray_actor_pool.ray.init", init)
    from edge_sim.engines.remote.ray_actor_pool import connect  # Ray learns what it may listen on before it is loaded

    with pytest.raises(UsageError, match=r"^run\.ray_address: .*10\.0\.0\.1:6379: Timed out"):
        connect("10.0.0.1:6379", workers=0)
    os.write(2, b"heard again\n")
    assert capfd.readouterr().err == "heard again\n"


def test_without_ray(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "edge_sim.engines.remote.ray_actor_pool", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert simulated(pictures, tmp_path) == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert line.endswith("pip install 'edge-sdk[ray]'")


@pytest.mark.usefixtures("ray")
def test_more_workers_than_the_cluster_has(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(pictures, tmp_path, "run.workers=7") == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert "run.workers: 7, " in line
    assert "2 CPUs" in line
