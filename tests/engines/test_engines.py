"""Whatever computes, the run is the same: to the bit in worker processes, to rounding where devices are stacked."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import fleets
import numpy as np
import pytest
from notes import Notes

from coordinator.config import to_toml
from coordinator.record.result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.report.summary import summary
from edge_sdk import cli
from edge_sdk.errors import RunFailed, StoreError, UsageError
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import Evaluate
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.computation_queue import Computation, ComputationQueue
from edge_sim.clock.virtual_fleet import VirtualDevice
from edge_sim.config import settings
from edge_sim.config.settings import Config, RunTable
from edge_sim.data.sources import npz
from edge_sim.engines import choice
from edge_sim.engines.base import LOST, DeviceAnswer, DeviceRequest, Engine, ExactEngine
from edge_sim.engines.model_timing import ModelTiming
from edge_sim.engines.remote.engine import RemoteEngine
from edge_sim.fleet import fleet as fleet_module
from edge_sim.fleet.fleet import build_fleet, rebuilt
from edge_sim.runs.runner import run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


from edge_sim.engines.remote.torch_process_pool import ProcessPool  # noqa: E402
from edge_sim.engines.stack import torch_cohort  # noqa: E402  # torch is there
from edge_sim.engines.stack.torch_cohort import CohortEngine  # noqa: E402
from edge_sim.engines.torch_engines import parameter_rows  # noqa: E402
from edge_sim.engines.torch_threads import use_one_thread  # noqa: E402

use_one_thread()  # as every simulation does

METHODS = ("fedproto", "fedavg", "fedmd", "fedal")


def tables(pictures: Path, method: str, families: str = "cycle:mlp,cnn,mlp", **train: Any) -> dict[str, Any]:
    found = fleets.tables(pictures, method, feature_dim=6)
    one = method in ("fedavg", "fedkf")  # weights of one layout
    found["fleet"] = [{"count": 6, "model": "mlp" if one else families}]
    found["train"] = {**found["train"], "evaluate_every": 2, **train}
    return found


def workers(fleet: fleets.Fleet, count: int) -> RemoteEngine:
    return RemoteEngine(ProcessPool(fleet, count, parameter_rows(RunTable(), fleet)))


def config(pictures: Path, method: str, families: str = "cycle:mlp,cnn,mlp", **train: Any) -> Config:
    return settings.parse(tables(pictures, method, families, **train), Path("test.toml"))


def exactly(chosen: Config) -> fleets.Run:
    return fleets.Run(chosen).finished()


LONG_FEDMD = pytest.param("fedmd", 2, marks=pytest.mark.long)  # asks for nothing that fedal does not ask for


@pytest.mark.processes
@pytest.mark.parametrize(("method", "count"), [("fedproto", 2), ("fedavg", 1), ("fedkf", 1), LONG_FEDMD, ("fedal", 1)])
def test_workers_compute_the_same_bits(pictures: Path, method: str, count: int) -> None:
    chosen = config(
        pictures, method, "cycle:mlp,cnn,softmax" if method not in ("fedproto", "fedkf") else "cycle:mlp,cnn"
    )
    alone, shared = exactly(chosen), fleets.Run(chosen)
    engine = workers(shared.fleet, count)
    divided = fleets.Run(shared.fleet, engine=engine).finished()
    engine.close()
    assert divided.model_bytes == alone.model_bytes
    assert divided.coordinator_bytes == alone.coordinator_bytes
    assert divided.clock.now_s == alone.clock.now_s
    assert summary(divided.result) == summary(alone.result)
    assert [each.instruments for each in divided.result.history] == [each.instruments for each in alone.result.history]


@pytest.mark.processes
def test_workers_train_the_weights_of_a_net_that_moves_them(pictures: Path) -> None:
    plain = tables(pictures, "fedavg")
    plain["fleet"] = [{"count": 6, "model": "odd_nets:moving"}]
    chosen = settings.parse(plain, Path("test.toml"))
    alone, shared = exactly(chosen), fleets.Run(chosen)
    engine = workers(shared.fleet, 1)
    divided = fleets.Run(shared.fleet, engine=engine).finished()
    engine.close()
    assert divided.model_bytes == alone.model_bytes
    assert divided.coordinator_bytes == alone.coordinator_bytes


ADAM, MOMENTUM, EPOCHS = {"optimiser": "adam"}, {"optimiser": "sgd", "momentum": 0.9}, {"local_epochs": 1}


@pytest.mark.parametrize(
    ("method", "train"),
    [
        *((method, ADAM) for method in METHODS),
        *(("fedproto", train) for train in (MOMENTUM, EPOCHS)),
        *(
            pytest.param(method, train, marks=pytest.mark.long)  # optimisers know no methods
            for method in METHODS[1:]
            for train in (MOMENTUM, EPOCHS)
        ),
    ],
)
def test_stacked_devices_differ_by_rounding(pictures: Path, method: str, train: dict[str, Any]) -> None:
    chosen = config(pictures, method, **train)
    alone, stacked = exactly(chosen), fleets.Run(chosen, engine=CohortEngine()).finished()
    for one, other in zip(alone.devices, stacked.devices, strict=True):
        apart = np.abs(one.agent.bench.model.weights() - other.agent.bench.model.weights())
        assert np.quantile(apart, 0.99) < 1e-6
        assert apart.max() < 1e-3  # Adam divides two roundings where a weight has next to no gradient
        assert one.agent.meter == other.agent.meter
    assert stacked.clock.now_s == alone.clock.now_s
    assert stacked.server.record.bytes_up == alone.server.record.bytes_up


@pytest.mark.parametrize("large", [True, False])
def test_stacks_of_large_nets_are_on_threads_and_have_the_bits_of_one_thread(
    pictures: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_threads, stacked = [], torch_cohort._stacked

    def noting(*asked: Any) -> Any:
        on_threads.append(threading.current_thread() is not threading.main_thread())
        return stacked(*asked)

    monkeypatch.setattr(torch_cohort, "_LEAST_WEIGHTS", 1 if large else 2**40)
    monkeypatch.setattr(torch_cohort.DenseStacking, "max_devices", 3)
    chosen = config(pictures, "fedavg")
    alone = fleets.Run(chosen, engine=CohortEngine()).finished()
    monkeypatch.setattr(torch_cohort, "_stacked", noting)
    engine = CohortEngine(threads=2)
    divided = fleets.Run(chosen, engine=engine).finished()
    engine.close()
    assert set(on_threads) == {large}
    assert divided.model_bytes == alone.model_bytes
    assert divided.coordinator_bytes == alone.coordinator_bytes


BAD_LINE = Faults(drop=0.05, duplicate=0.2, delay=0.2, delay_s=3.0, disconnect=0.02)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fedproto", pytest.param("fedal", marks=pytest.mark.long)])
def test_workers_compute_the_same_bits_on_a_bad_line_and_through_power_cuts(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    chosen = config(pictures, method)

    def troubled(engine: Engine) -> fleets.Run:
        run = fleets.Run(chosen, faults=BAD_LINE, seed=3, engine=engine)
        _cut_as_it_begins(monkeypatch, run, run.devices[2])
        run.power_cut(run.devices[4].device.kit.id, 2.0, 5.0)
        return run.finished()

    alone, engine = troubled(ExactEngine()), workers(fleets.Run(chosen).fleet, 1)
    divided = troubled(engine)
    engine.close()
    assert divided.model_bytes == alone.model_bytes == exactly(chosen).model_bytes
    assert divided.clock.now_s == alone.clock.now_s
    assert summary(divided.result) == summary(alone.result)


def _cut_as_it_begins(patch: pytest.MonkeyPatch, run: fleets.Run, device: VirtualDevice) -> None:
    """Take a device's power at the very moment at which it was assigned work, when somebody may be computing for it."""
    add, cut = ComputationQueue.add, []

    def add_and_cut(queue: ComputationQueue, computation: Computation) -> None:
        add(queue, computation)
        if computation.agent is device.agent and not cut:
            cut.append(True)
            run.power_cut(device.device.kit.id, run.clock.now_s, 4.0)

    patch.setattr(ComputationQueue, "add", add_and_cut)


def of_losses(notes: Notes) -> list[str]:
    """What was said of processes that were lost."""
    return [line for line in notes.lines if "a process that computed" in line]


class Unreliable(ExactEngine):
    """Loses the answers of some calls, and leaves the models of those who asked in no known state."""

    def __init__(self, *loses: int) -> None:
        super().__init__()
        self._loses, self._calls = loses, 0

    def serve(self, asked: Sequence[DeviceRequest]) -> list[DeviceAnswer]:
        self._calls += 1
        answers = super().serve(asked)
        if self._calls in self._loses:
            for each in asked:
                each.bench.model.set_weights(np.zeros_like(each.bench.model.weights()))
            return [LOST for _ in asked]
        return answers


@pytest.mark.parametrize("lost", [1, 2, 3, 5, 8])
def test_what_was_lost_is_computed_anew(pictures: Path, lost: int) -> None:
    chosen = config(pictures, "fedproto")
    noting, alone = Notes(), exactly(chosen)
    again = fleets.Run(chosen, engine=Unreliable(lost), observer=noting).finished()
    assert again.model_bytes == alone.model_bytes
    assert again.clock.now_s == alone.clock.now_s
    assert summary(again.result) == summary(alone.result)  # the board never lost it, and pays once
    (told,) = of_losses(noting)
    assert re.search("device-00 and 5 more .*lost", told)


def test_what_is_lost_twice_ends_the_run(pictures: Path) -> None:
    with pytest.raises(RunFailed, match=r"device-00 ended twice .*--resume"):
        fleets.Run(config(pictures, "fedproto"), engine=Unreliable(2, 3)).finished()


class Killer(Notes):
    """Ends a worker after the first round, as the kernel would one that takes too much memory."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: RemoteEngine | None = None
        self.killed: list[int] = []

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002
        if result.round == 1 and self.engine is not None:
            self.killed.append(self.engine.pids[0])
            os.kill(self.engine.pids[0], signal.SIGKILL)


@pytest.mark.processes
def test_a_killed_worker_is_replaced(pictures: Path) -> None:
    chosen = config(pictures, "fedproto")
    killer = Killer()
    fleet = exactly(chosen)
    killer.engine = engine = workers(fleet.fleet, 2)
    again = fleets.Run(fleet.fleet, engine=engine, observer=killer).finished()
    assert killer.killed
    assert killer.killed[0] not in engine.pids
    engine.close()
    assert again.model_bytes == fleet.model_bytes
    assert summary(again.result) == summary(fleet.result)
    assert len(of_losses(killer)) == 1


def test_a_run_whose_workers_keep_dying_can_be_resumed(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tables(pictures, "fedproto")
    whole = summary(run(plain))
    with monkeypatch.context() as broken:
        broken.setattr(choice, "open_engine", lambda *_: Unreliable(5, 6))
        with pytest.raises(RunFailed, match="ended twice"):
            run(plain, out=tmp_path / "run")
    again = summary(run(plain, out=tmp_path / "run", resume=True))
    assert again["completed"]
    assert again["accuracy"] == whole["accuracy"]
    assert again["memory"]["peak_mib"] > 10


@pytest.mark.processes
def test_a_worker_that_cannot_begin_says_why(pictures: Path) -> None:
    chosen = config(pictures, "fedproto")
    fleet = fleets.Run(chosen).fleet
    for device in fleet.devices:
        object.__setattr__(device.kit, "family", "nowhere:factory")
    engine = workers(fleet, 1)
    benches = fleets.Run(chosen)
    for device in benches.devices:
        engine.attach(device.device.kit.number, device.agent.bench)
    asked = [DeviceRequest(d.agent.bench, Evaluate(0), _job(benches, d.device.kit.number)) for d in benches.devices]
    engine.ready()
    for each in asked:
        engine.begin(each)
    with pytest.raises(RunFailed, match="'nowhere:factory' does not import"):
        engine.collect()
    engine.close()


def _job(of: fleets.Run, number: int) -> Job:
    return Job(spec=of.fleet.federation.spec, number=number, round=0, exchange=0, closing=False, samples=8, learns=True)


# -- which engine ---------------------------------------------------------------------------------------------------


def resolved(config: Config, out: Path | None = None) -> tuple[Config, str]:
    return choice.resolve_engine(config, build_fleet(config), out)


def test_auto_says_and_keeps_what_it_found(pictures: Path, tmp_path: Path) -> None:
    plain = tables(pictures, "fedproto")
    plain["run"]["engine"] = "auto"
    chosen, why = resolved(settings.parse(plain, Path("test.toml")), tmp_path)
    assert why.startswith(f"engine: {chosen.run.engine}")
    assert "mlp " in why
    assert re.search(r"mlp \d+\.\d+ ms", why)
    assert chosen.run.engine != "auto"
    assert settings.parse(chosen.tables, chosen.file).run == chosen.run  # as it is written down
    assert json.loads((tmp_path / choice.CHOICE_FILE).read_text())["engine"] == chosen.run.engine
    (tmp_path / choice.CHOICE_FILE).write_text('{"engine": "cohort", "stacked": ["mlp"]}')
    again, why = resolved(settings.parse(plain, Path("test.toml")), tmp_path)
    assert (again.run.engine, again.run.stacked) == ("cohort", ("mlp",))
    assert "as before" in why
    (tmp_path / choice.CHOICE_FILE).write_text("no json")
    with pytest.raises(StoreError, match="remove it"):
        resolved(settings.parse(plain, Path("test.toml")), tmp_path)


@pytest.mark.parametrize(
    ("differs", "engine"),
    [
        ({}, "shards"),
        ({"faults": {"drop": 0.1}}, "shards"),
        ({"faults": {"disconnect": 0.1}}, "workers"),
        ({"run": {"memory_bytes": 10**6}}, "workers"),
        ({"run": {"workers": 1}}, "cohort"),
    ],
)
def test_auto_takes_the_quickest_engine_of_processes_that_can_have_the_run(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, differs: dict[str, Any], engine: str
) -> None:
    plain = {**tables(pictures, "fedproto"), **differs}
    plain["run"] = {"standalone": "off", "engine": "auto", "workers": 2, **differs.get("run", {})}
    monkeypatch.setattr(choice, "WORTH_S", 0.0)
    slow = ModelTiming(model="mlp", devices=6, alone_ms=2.0, stacked_ms=1.0)
    monkeypatch.setattr("edge_sim.engines.torch_engines.calibrated", lambda *_: [slow])
    chosen, why = resolved(settings.parse(plain, Path("test.toml")))
    assert (chosen.run.engine, chosen.run.stacked) == (engine, ("mlp",))
    assert why.startswith(f"engine: {engine}")


def test_auto_leaves_torch_alone_where_nobody_has_it(pictures: Path) -> None:
    plain = fleets.tables(pictures, "fedmd")
    plain["run"]["engine"] = "auto"
    chosen, why = resolved(settings.parse(plain, Path("test.toml")))
    assert chosen.run.engine == "exact"
    assert "computes in torch" in why


def test_an_unknown_engine_is_refused(pictures: Path) -> None:
    plain = fleets.tables(pictures, "fedmd")
    plain["run"]["engine"] = "quantum"
    with pytest.raises(UsageError, match=r"run\.engine: .*, found 'quantum'$"):
        settings.parse(plain, Path("test.toml"))


@pytest.mark.parametrize("engine", ["cohort", pytest.param("workers", marks=pytest.mark.processes)])
def test_a_run_on_each_engine(pictures: Path, engine: str) -> None:
    plain = tables(pictures, "fedproto")
    plain["run"] |= {"engine": engine, "workers": 1, "stacked": ["mlp"], "memory_bytes": 1, "standalone": True}
    found = run(plain)
    assert found.completed
    assert found.standalone_history


@pytest.mark.parametrize("engine", ["cohort", "workers"])
def test_weights_without_room_on_the_disk_end_the_run_with_one_line(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    plain = tables(pictures, "fedproto")
    plain["run"] |= {"engine": engine, "workers": 1, "stacked": ["mlp"], "memory_bytes": 1}
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(plain), encoding="utf-8")
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"edge-sdk: /.*: no room for .* of models' weights and moments \(No space .*", said)


@pytest.mark.parametrize("engine", ["exact", "auto"])
def test_data_is_loaded_and_dealt_out_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The calibration of `auto`, the run, and the devices alone have one data set and one partition."""
    read, deal, done = npz.read_npz, fleet_module.partition, list[str]()
    monkeypatch.setattr(npz, "read_npz", lambda *given: done.append("load") or read(*given))
    monkeypatch.setattr(fleet_module, "partition", lambda *given, **more: done.append("deal") or deal(*given, **more))
    plain = tables(pictures, "fedproto")
    plain["run"] |= {"engine": engine, "standalone": True}
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(plain), encoding="utf-8")
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert done == ["load", "deal"]
    done.clear()
    found = run(plain)
    assert done == ["load", "deal"]
    assert found.standalone_history


def test_a_fleet_built_again_is_the_one_that_is_loaded(pictures: Path) -> None:
    """Also where the other method wants other models: FedNH has cosine heads, the devices alone have not."""
    federated = config(pictures, "fednh", "mlp")
    alone = settings.alone(federated)
    loaded, again = build_fleet(alone), rebuilt(build_fleet(federated), alone)
    assert [device.kit for device in again.devices] == [device.kit for device in loaded.devices]
    assert again.federation == loaded.federation
    for one, other in zip(again.devices, loaded.devices, strict=True):
        np.testing.assert_array_equal(one.data.train.x, other.data.train.x)
        assert one.conditions == other.conditions
