"""Stacked devices compute the same run to rounding; what `auto` and older keys of [run] stand for."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from pathlib import Path
from typing import Any, NoReturn

import fleets
import numpy as np
import pytest

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sdk.errors import StoreError, UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config, RunTable
from edge_sim.data.sources import npz
from edge_sim.engines import choice
from edge_sim.engines.torch_engines import ModelTiming
from edge_sim.fleet import fleet as fleet_module
from edge_sim.fleet.fleet import build_fleet, rebuilt
from edge_sim.runs.runner import run
from edge_sim.runs.runner import run as run_config

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


from edge_sim.engines.stack import torch_cohort
from edge_sim.engines.stack.torch_cohort import CohortEngine
from edge_sim.engines.torch_threads import use_one_thread

use_one_thread()  # as every simulation does

METHODS = ("fedproto", "fedavg", "fedmd", "fedal")


def tables(pictures: Path, method: str, families: str = "cycle:mlp,cnn,mlp", **train: Any) -> dict[str, Any]:
    found = fleets.tables(pictures, method, feature_dim=6)
    one = method in ("fedavg", "fedkf")  # weights of one layout
    found["fleet"] = [{"count": 6, "model": "mlp" if one else families}]
    found["train"] = {**found["train"], "evaluate_every": 2, **train}
    return found


def config(pictures: Path, method: str, families: str = "cycle:mlp,cnn,mlp", **train: Any) -> Config:
    return settings.parse(tables(pictures, method, families, **train), Path("test.toml"))


def exactly(chosen: Config) -> fleets.Run:
    return fleets.Run(chosen).finished()


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
        apart = np.abs(one.participant.context.bench.model.weights() - other.participant.context.bench.model.weights())
        assert np.quantile(apart, 0.99) < 1e-6
        assert apart.max() < 1e-3  # Adam divides two roundings where a weight has next to no gradient
        assert one.participant.context.bench.meter == other.participant.context.bench.meter
    assert stacked.clock.now_s == alone.clock.now_s
    assert stacked.server.record.bytes_up == alone.server.record.bytes_up


@pytest.mark.traced
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


# -- how a run computes ---------------------------------------------------------------------------------------------


def resolved(config: Config, out: Path | None = None) -> tuple[Config, str]:
    return choice.resolve_run(config, build_fleet(config), out)


def with_run(pictures: Path, method: str = "fedproto", **run: Any) -> Config:
    plain = tables(pictures, method)
    plain["run"] = {"standalone": "off", **run}
    return settings.parse(plain, Path("test.toml"))


def test_auto_says_and_keeps_what_it_found(pictures: Path, tmp_path: Path) -> None:
    asked = with_run(pictures, processes="auto", stack="auto")
    chosen, why = resolved(asked, tmp_path)
    assert re.match(r"run: 1 process, stacked: .*mlp \d+\.\d+ ms", why)
    assert chosen.run.processes == 1
    assert isinstance(chosen.run.stack, bool)
    assert settings.parse(chosen.tables, chosen.file).run == chosen.run  # as it is written down
    kept = json.loads((tmp_path / choice.CHOICE_FILE).read_text())
    assert kept == {"processes": 1, "stack": chosen.run.stack, "stacked": list(chosen.run.stacked or ())}
    (tmp_path / choice.CHOICE_FILE).write_text('{"processes": 1, "stack": true, "stacked": ["mlp"]}')
    again, why = resolved(asked, tmp_path)
    assert (again.run.processes, again.run.stack, again.run.stacked) == (1, True, ("mlp",))
    assert "as before" in why
    (tmp_path / choice.CHOICE_FILE).write_text('{"engine": "shards", "workers": 3, "stacked": ["mlp"]}')  # an older run
    again, _ = resolved(asked, tmp_path)
    assert (again.run.processes, again.run.stack, again.run.stacked) == (3, True, ("mlp",))
    (tmp_path / choice.CHOICE_FILE).write_text("no json")
    with pytest.raises(StoreError, match="remove it"):
        resolved(asked, tmp_path)


@pytest.mark.parametrize(
    ("run", "processes", "stacked"),
    [
        ({"processes": "auto", "stack": "auto"}, 2, ("mlp",)),
        ({"processes": "auto"}, 2, None),
        ({"stack": "auto"}, None, ("mlp",)),
        ({"processes": 3, "stack": "auto"}, 3, ("mlp",)),
    ],
)
def test_auto_fills_in_what_is_asked_for_and_leaves_the_rest(
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: dict[str, Any],
    processes: int | None,
    stacked: tuple[str, ...] | None,
) -> None:
    monkeypatch.setattr(choice, "WORTH_S", 0.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    slow = ModelTiming(model="mlp", devices=6, alone_ms=2.0, stacked_ms=1.0)
    monkeypatch.setattr("edge_sim.engines.torch_engines.calibrated", lambda *_: [slow])
    chosen, why = resolved(with_run(pictures, **run))
    assert (chosen.run.processes, chosen.run.stacked) == (processes, stacked)
    assert chosen.run.stack == (stacked is not None)
    assert why.startswith("run: ")


def test_auto_leaves_torch_alone_where_nobody_has_it(pictures: Path) -> None:
    plain = fleets.tables(pictures, "fedmd")
    plain["run"] |= {"processes": "auto", "stack": "auto"}
    chosen, why = resolved(settings.parse(plain, Path("test.toml")))
    assert (chosen.run.processes, chosen.run.stack) == (1, False)
    assert "computes in torch" in why


@pytest.mark.parametrize(
    ("older", "today", "written"),
    [
        ({"engine": "exact"}, {}, "leave it out"),
        ({"engine": "cohort", "stacked": ["mlp"]}, {"stack": True, "stacked": ("mlp",)}, "stack = true"),
        ({"engine": "shards", "workers": 3}, {"processes": 3}, "processes = 3"),
        (
            {"engine": "workers", "workers": 2, "stacked": ["mlp"]},
            {"processes": 2, "stack": True, "stacked": ("mlp",)},
            "processes = 2; stack = true",
        ),
        ({"engine": "auto"}, {"processes": "auto", "stack": "auto"}, 'processes = "auto"; stack = "auto"'),
        (
            {"engine": "ray", "ray_address": "10.0.0.1:6379"},
            {"processes": "auto", "cluster": "10.0.0.1:6379"},
            'processes = "auto"; cluster = "10.0.0.1:6379"',
        ),
    ],
)
def test_older_keys_are_read_and_a_line_says_what_to_write(
    pictures: Path, older: dict[str, Any], today: dict[str, Any], written: str
) -> None:
    found = with_run(pictures, **older)
    assert found.run == RunTable(standalone="off", **today)
    (line,) = found.remarks
    assert line.startswith("test.toml: run.engine")
    assert line.endswith(written if written == "leave it out" else f"write {written}")


def test_an_unknown_engine_is_refused(pictures: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.engine: .*, found 'quantum'; use processes, stack and cluster"):
        with_run(pictures, engine="quantum")


@pytest.mark.traced
@pytest.mark.parametrize("run", [{"stack": True, "stacked": ["mlp"]}, {}, {"processes": 2}])
def test_models_on_disk_train_as_those_in_memory(pictures: Path, run: dict[str, Any]) -> None:
    plain = tables(pictures, "fedproto", "cycle:mlp,cnn,odd_nets:moving", optimiser="adam")
    plain["run"] = {"standalone": "off", **run}
    inside = run_config(plain)
    plain["run"] |= {"memory_bytes": 1}
    on_disk = run_config(plain)
    assert on_disk.completed
    assert [each.accuracy for each in on_disk.history] == [each.accuracy for each in inside.history]
    assert [each.instruments for each in on_disk.history] == [each.instruments for each in inside.history]


@pytest.mark.parametrize("choice_of", [{"stack": True, "stacked": ["mlp"]}, {}])
def test_weights_without_room_on_the_disk_end_the_run_with_one_line(
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    choice_of: dict[str, Any],
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    plain = tables(pictures, "fedproto")
    plain["run"] |= {**choice_of, "memory_bytes": 1}
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(plain), encoding="utf-8")
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"edge-sdk: /.*: no space for .* of models' weights and moments \(No space .*", said)


@pytest.mark.parametrize("processes", [1, "auto"])
def test_data_is_loaded_and_dealt_out_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: object
) -> None:
    """The calibration of `auto`, the run, and the devices alone have one data set and one partition."""
    read, deal, done = npz.read_npz, fleet_module.partition, list[str]()
    monkeypatch.setattr(npz, "read_npz", lambda *given: done.append("load") or read(*given))
    monkeypatch.setattr(fleet_module, "partition", lambda *given, **more: done.append("deal") or deal(*given, **more))
    plain = tables(pictures, "fedproto")
    plain["run"] |= {"processes": processes, "standalone": True}
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
