"""The examples, run as a newcomer runs them: real broker, coordinator and device processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from example_processes import EDGE_SDK, check_interrupted, coordinator_of, ended_well, read_until, running

from coordinator.broker.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = ["--set", "federation.rounds=4", "--set", "train.evaluate_every=2"]
pytestmark = [pytest.mark.broker, pytest.mark.processes, pytest.mark.costly]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public set, as make_public.py writes it."""
    folder = tmp_path_factory.mktemp("public")
    subprocess.run([sys.executable, EXAMPLES / "two_terminals" / "make_public.py"], cwd=folder, check=True)
    (file,) = folder.iterdir()
    return file


def _prepare(folder: Path, example: str, public: Path) -> Path:
    shutil.copytree(EXAMPLES / example, folder / example)
    shutil.copy(public, folder / example)
    return folder / example


def test_two_terminals(tmp_path: Path, public: Path) -> None:
    pytest.importorskip("torch")
    folder = _prepare(tmp_path, "two_terminals", public)
    with EmbeddedBroker() as broker, ExitStack() as stack:
        drawing = os.environ.get("PYTHONPATH", "")
        command = coordinator_of(broker.url, *ROUNDS)
        coordinator = stack.enter_context(running(folder, *command, PYTHONPATH=drawing))
        device = (*EDGE_SDK, "device", "--broker", broker.url, "--federation", "digits", "--app", "my_app:make", "--id")
        left = stack.enter_context(running(folder, *device, "left", DIGITS="0,1,2,3,4"))
        right = stack.enter_context(running(folder, *device, "right", DIGITS="5,6,7,8,9"))
        table = ended_well(coordinator)
        assert "the federation is complete" in ended_well(left)
        assert "round 4, accuracy" in ended_well(right)
    assert "left" in table
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["completed"]
    assert [device["rounds_done"] for device in summary["per_device"]] == [4, 4]
    assert [*(folder / "run" / "plots").glob("*.png")]


def test_app_embedding(tmp_path: Path, public: Path) -> None:
    folder = _prepare(tmp_path, "app_embedding", public)
    with EmbeddedBroker() as broker, ExitStack() as stack:
        coordinator = stack.enter_context(running(folder, *coordinator_of(broker.url, *ROUNDS)))
        cameras = [
            stack.enter_context(running(folder, "camera.py", "--broker", broker.url, "--id", name))
            for name in ("kitchen", "garage")
        ]
        ended_well(coordinator)
        for camera in cameras:
            time.sleep(0.2)
            assert camera.poll() is None  # the federation is over, the app's own work is not
            assert "picture 0: a " in check_interrupted(camera)
    assert json.loads((folder / "run" / "summary.json").read_text())["completed"]


def test_vibration(tmp_path: Path) -> None:
    """Two machines learn from their streams; one loses its power, and goes on from its files."""
    folder = tmp_path / "vibration"
    shutil.copytree(EXAMPLES / "vibration", folder, ignore=shutil.ignore_patterns("state", "__pycache__"))
    few = ["--set", "federation.devices=2", "--set", "federation.rounds=6", "--set", "federation.quorum=2"]
    with EmbeddedBroker() as broker, ExitStack() as stack:
        monitor = ("monitor.py", "--broker", broker.url, "--every-s", "0.01", "--number")
        first = stack.enter_context(running(folder, *monitor, "0"))
        read_until(first, "window 100")
        first.kill()
        first.wait()
        coordinator = stack.enter_context(running(folder, *coordinator_of(broker.url, *few)))
        machines = [stack.enter_context(running(folder, *monitor, number)) for number in ("0", "1")]
        ended_well(coordinator)
        for machine in machines:
            check_interrupted(machine)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [device["rounds_done"] for device in summary["per_device"]] == [6, 6]
    assert summary["per_device"][0]["samples"] >= 40  # those of before the power cut are still there
