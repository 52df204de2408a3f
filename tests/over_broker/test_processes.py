"""The same federations as real processes over a real broker, some of which are killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import pytest
from deployment import Deployment
from interrupting import CTRL_C

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.trace import log as traces
from edge_sdk.cli import main
from edge_sdk.errors import RunFailed, UsageError
from edge_sim.clock.clock import VirtualClock
from edge_sim.config import settings
from edge_sim.runs.runner import run

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]

ROUNDS = 24


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker("amqtt") as running:
        yield running.url


def accuracies(summary: dict[str, Any]) -> dict[str, float]:
    assert summary["completed"]
    return {device["id"]: device["accuracy"] for device in summary["per_device"]}


def test_processes_are_killed_and_started_again_and_the_run_is_the_one_in_memory_and_in_its_trace(
    tmp_path: Path,
    pictures: Path,
    broker: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Devices and the coordinator lose their power in turn; a coordinator that is started after the end changes nothing."""
    control = {"rounds": ROUNDS, "control": 0.34, "control_rounds": 4}
    memory = run(settings.parse(fleets.tables(pictures, devices=3, **control), Path("test.toml")))
    with Deployment(tmp_path, pictures, broker, **control) as deployment:
        deployment.start_coordinator("--trace")
        for device in deployment.devices:
            deployment.start_device(device)
        for round_, name in ((4, "coordinator"), (8, "device-01"), (12, "coordinator"), (16, "device-02")):
            deployment.wait_for_round(round_)
            assert deployment.end(name, signal.SIGKILL) == -signal.SIGKILL
            if name == "coordinator":
                deployment.start_coordinator("--trace", resume=True)
            else:
                deployment.start_device(name)
        summary = deployment.finish()
        assert accuracies(summary) == {device.id: device.accuracy for device in memory.devices}
        alone = {device["id"]: device.get("alone") for device in summary["per_device"]}
        assert alone == {device.id: device.sums.get("alone") for device in memory.devices}
        assert summary["uplift"] == memory.uplift
        assert summary["uplift"]["text"] in deployment.said("coordinator")
        with (deployment.out / "rounds.csv").open(encoding="utf-8") as rounds:
            assert summary["time"]["wall_s"] >= sum(float(row["wall_s"]) for row in csv.DictReader(rounds))
        before = {path: path.read_bytes() for path in deployment.out.rglob("*") if path.is_file()}
        deployment.start_coordinator("--trace", resume=True)
        assert deployment.finish() == summary
        assert {path: path.read_bytes() for path in deployment.out.rglob("*") if path.is_file()} == before
        assert "the run is finished, there is nothing to continue" in deployment.said("coordinator")
    trace = str(deployment.out / traces.NAME)
    assert main(["replay", trace]) == 0
    assert f"{ROUNDS} rounds again" in capsys.readouterr().out
    assert main(["replay", trace, "--device", "device-00"]) == 2
    assert "give --app" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT", str(tmp_path / "kits" / "device-00"))
    assert main(["replay", trace, "--device", "device-00", "--app", "tiny_app:make"]) == 0
    assert "equal to the recorded" in capsys.readouterr().out


# -- simulate --broker embedded ---------------------------------------------------------------------------------------


def mixed(pictures: Path) -> dict[str, Any]:
    tables = fleets.tables(pictures, devices=4, rounds=3)
    tables["fleet"] = [
        {"count": 1, "model": "softmax"},
        {"count": 1, "model": "mlp"},
        {"count": 1, "model": "onnx-random", "size": [8, 8]},
        {"count": 1, "model": "onnx-kmeans", "size": [8, 8]},
    ]
    return tables


def test_a_fleet_of_processes_gives_the_accuracies_of_the_one_in_memory(pictures: Path, tmp_path: Path) -> None:
    for package in ("torch", "onnxruntime", "onnx"):
        pytest.importorskip(package)
    result = run(mixed(pictures), broker="embedded:amqtt", out=tmp_path / "run")
    in_memory = run(mixed(pictures))
    assert result.completed
    assert [device.runtime for device in result.devices] == ["numpy", "torch", "onnx", "onnx"]
    assert [device.accuracy for device in result.devices] == [device.accuracy for device in in_memory.devices]
    assert [entry.accuracy for entry in result.history] == [entry.accuracy for entry in in_memory.history]
    for device, torch_is_there in (("00", False), ("01", True), ("02", False), ("03", False)):
        file = tmp_path / "run" / "devices" / f"device-{device}" / "modules.json"
        modules = json.loads(file.read_text(encoding="utf-8"))
        assert any(name.partition(".")[0] == "torch" for name in modules) == torch_is_there
        assert "onnx" not in {name.partition(".")[0] for name in modules} or device in {"02", "03"}


class BrokerKiller(RunObserver):
    """Kills the embedded brokers that were started, at the end of a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pids: list[int] = []
        start = EmbeddedBroker.start

        def noted(broker: EmbeddedBroker) -> EmbeddedBroker:
            started = start(broker)
            self.pids.append(started.pid)
            return started

        monkeypatch.setattr(EmbeddedBroker, "start", noted)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        while result.round == 3 and self.pids:
            os.kill(self.pids.pop(), signal.SIGKILL)


def test_a_killed_broker_and_ctrl_c_end_the_run_which_can_be_resumed(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would start the broker again, so nothing is waited for; Ctrl-C reaches coordinator and devices alike."""
    tables = fleets.tables(pictures, devices=3, rounds=ROUNDS)
    expected = {device.id: device.accuracy for device in run(tables).devices}
    file, out, killer = tmp_path / "federation.toml", tmp_path / "run", BrokerKiller(monkeypatch)
    file.write_text(to_toml(tables), encoding="utf-8")
    with pytest.raises(RunFailed, match=r"embedded broker.*signal 9.*--resume"):
        run(file, broker="embedded:amqtt", out=out, observer=lambda _label: killer)
    command = [sys.executable, "-m", "edge_sdk.cli", "simulate", str(file), "--broker", "embedded:amqtt"]
    with subprocess.Popen(
        [*command, "--out", str(out), "--resume"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " round 10/" in line:
                os.killpg(process.pid, signal.SIGINT)
        said = line
    assert process.returncode in CTRL_C
    assert "interrupted" in said
    with pytest.raises(UsageError, match="already holds a run"):
        run(file, broker="embedded:amqtt", out=out)
    with pytest.raises(UsageError, match=r"device-00: .*over a broker"):
        run(file, out=out, resume=True)
    result = run(file, broker="embedded:amqtt", out=out, resume=True)
    assert {device.id: device.accuracy for device in result.devices} == expected
    assert result.completed


def test_a_run_in_memory_is_not_resumed_over_a_broker(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        steps = iter(range(100))
        step = VirtualClock.step

        def stop(clock: VirtualClock) -> bool:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return step(clock)

        patch.setattr(VirtualClock, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            run(fleets.tables(pictures), out=tmp_path / "run")
    with pytest.raises(UsageError, match=r"device-00: .*in memory"):
        run(fleets.tables(pictures), broker="embedded:amqtt", out=tmp_path / "run", resume=True)
