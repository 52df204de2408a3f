"""On a local Ray a run is the same to the bit; an actor that ends leaves a run that can be resumed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pickle
import re
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
import pytest
from laws import EQUIPMENT, spec_of, uploads

from coordinator.config import to_toml
from coordinator.ledger import Ledger
from coordinator.record.result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.report.summary import summary, without_times
from coordinator.serving.equipment import ready_method
from coordinator.serving.server import RunObserver
from edge_sdk import cli
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.config import settings
from edge_sim.fleet.fleet import build_fleet as fleet_of
from edge_sim.runs.runner import run
from edge_sim.shards import ray_shard
from edge_sim.shards.ray_shard import ShardActor, to_pickle
from edge_sim.shards.sharded_fleet import ShardedFleet, divided_run

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'edge-sdk[ray]'", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # Ray starts a process for each worker: slow on busy cores
SMALL = {"public_batch": 4, "max_devices": 8, "tau": 2, "distill_batch": 4, "samples_per_class": 2, "steps": 2}
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
        address = ray_shard.find_ray_address("local")
        import ray  # Ray learns what it may listen on before it is loaded

        from edge_sim.shards.ray_shard import connect  # likewise

        assert connect(address, cpus=2)
        yield ray
        ray.shutdown()


def tables(pictures: Path, method: str, models: str, **run: Any) -> dict[str, Any]:
    found = fleets.tables(pictures, method, feature_dim=6 if "mlp" in models else fleets.WIDTH)
    found["fleet"] = [{"count": 6, "model": models}]
    found["train"] |= {"optimiser": "adam", "evaluate_every": 2}
    found["run"] |= run
    return found


ON_RAY = {"cluster": "local", "processes": 2}


@pytest.mark.torch
@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.usefixtures("ray")
def test_actors_compute_the_same_bits(pictures: Path) -> None:
    models = "cycle:mlp,cnn,softmax"
    alone = run(tables(pictures, "fedal", models))
    divided = run(tables(pictures, "fedal", models, **ON_RAY))
    assert without_times(summary(divided)) == without_times(summary(alone))
    assert divided.history == alone.history
    assert divided.memory["peak_mib"] > alone.memory["peak_mib"]


class Killer(RunObserver):
    """Ends an actor's process after the first round."""

    def __init__(self) -> None:
        self.fleet: ShardedFleet | None = None

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002
        if result.round == 1 and self.fleet is not None:
            os.kill(self.fleet.shards.pids[0], signal.SIGKILL)


@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.usefixtures("ray")
def test_a_killed_actor_ends_the_run_with_a_line(pictures: Path) -> None:
    config, killer = settings.parse(tables(pictures, "fedavg", "softmax", **ON_RAY), Path("test.toml")), Killer()
    killer.fleet = divided_run(config, fleet_of(config), ledger=Ledger(None), observer=killer)
    with pytest.raises(RunFailed, match=r"the Ray actor that held device-0\d and 2 more devices ended: .*start again"):
        killer.fleet.run()
    killer.fleet.close()


@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.usefixtures("ray")
def test_uploads_are_added_up_on_ray(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_sim.shards import ray_fold  # likewise

    parts: list[int] = []
    finish = ray_fold.RayFoldedMethod.finish

    def counted(self: Any, spec: FederationSpec, state: Any, at: ExchangeId, aggregate: Any) -> Any:
        parts.append(len(aggregate.sums))
        return finish(self, spec, state, at, aggregate)

    monkeypatch.setattr(ray_fold, "TOGETHER", 4)
    monkeypatch.setattr(ray_fold.RayFoldedMethod, "finish", counted)
    alone = run(tables(pictures, "fedavg", "softmax"))
    folded = run(tables(pictures, "fedavg", "softmax", **ON_RAY, ray_fold=True))
    assert parts == [1, 1, 1]
    assert without_times(summary(folded)) == without_times(summary(alone))


@pytest.mark.parametrize("name", method_names())
def test_every_method_folds_elsewhere(name: str) -> None:
    """What a task is given and gives back travels as bytes."""
    if name in ("fedal", "fedgen", "feddf_al"):
        pytest.importorskip("torch")
    from edge_sim.shards.ray_fold import fold  # likewise

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


def test_another_version_is_refused() -> None:
    raised, found = pickle.loads(ShardActor().begin("9.9.9", b""))
    assert raised
    assert re.search(r"edge-sdk .*, this machine 9\.9\.9", str(found))


# -- bad input ------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def simulated(pictures: Path, tmp_path: Path, *overrides: str) -> int:
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(fleets.tables(pictures)), encoding="utf-8")
    sets = [word for each in overrides for word in ("--set", each)]
    return cli.main(["simulate", str(file), "--out", str(tmp_path / "out"), *sets])


def test_a_cluster_that_does_not_answer(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert simulated(pictures, tmp_path, f"run.cluster={address}") == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert f"nothing answers at {address}" in line


def test_one_that_answers_and_is_no_ray_is_one_line(
    ray: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def init(**_: Any) -> None:
        os.write(2, b"gcs_client.cc:210: Failed\n")  # as Ray's core does
        raise ConnectionError("Timed out")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    from edge_sim.shards.ray_shard import connect  # Ray learns what it may listen on before it is loaded

    with pytest.raises(UsageError, match=r"^run\.cluster: .*10\.0\.0\.1:6379: Timed out"):
        connect("10.0.0.1:6379", cpus=0)
    os.write(2, b"heard again\n")
    assert capfd.readouterr().err == "heard again\n"


def test_without_ray(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "edge_sim.shards.ray_shard", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert simulated(pictures, tmp_path, "run.cluster=local") == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert line.endswith("pip install 'edge-sdk[ray]'")


@pytest.mark.usefixtures("ray")
def test_more_processes_than_the_cluster_has(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(pictures, tmp_path, "run.cluster=local", "run.processes=7") == 2
    *_, line = capsys.readouterr().err.splitlines()  # below the one that says what is about to run
    assert "run.processes: 7 need 6 CPUs" in line
    assert "Ray has 2" in line
