"""The examples, run as a newcomer runs them: real broker, coordinator and device processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coordinator.broker.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = ["--set", "federation.rounds=4", "--set", "train.evaluate_every=2"]
pytestmark = [pytest.mark.broker, pytest.mark.processes]


@contextmanager
def _process(folder: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _prepare(folder: Path, example: str) -> Path:
    shutil.copytree(EXAMPLES / example, folder / example)
    shutil.copy(EXAMPLES / "two_terminals" / "make_public.py", folder / example)
    subprocess.run([sys.executable, "make_public.py"], cwd=folder / example, check=True)
    return folder / example


def _ended_well(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    return text


def test_two_terminals(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = _prepare(tmp_path, "two_terminals")
    with EmbeddedBroker() as broker, ExitStack() as stack:
        cli = ("-m", "edge_sdk.cli")
        coordinator = stack.enter_context(
            _process(folder, *cli, "coordinator", "federation.toml", "--broker", broker.url, "--out", "run", *ROUNDS)
        )
        device = (*cli, "device", "--broker", broker.url, "--federation", "digits", "--app", "my_app:make", "--id")
        left = stack.enter_context(_process(folder, *device, "left", DIGITS="0,1,2,3,4"))
        right = stack.enter_context(_process(folder, *device, "right", DIGITS="5,6,7,8,9"))
        table = _ended_well(coordinator)
        assert "the federation is complete" in _ended_well(left)
        assert "round 4, accuracy" in _ended_well(right)
    assert "left" in table
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["completed"]
    assert [device["rounds_done"] for device in summary["per_device"]] == [4, 4]


def test_app_embedding(tmp_path: Path) -> None:
    folder = _prepare(tmp_path, "app_embedding")
    with EmbeddedBroker() as broker, ExitStack() as stack:
        coordinator = stack.enter_context(
            _process(
                folder,
                "-m",
                "edge_sdk.cli",
                "coordinator",
                "federation.toml",
                "--broker",
                broker.url,
                "--out",
                "run",
                *ROUNDS,
            )
        )
        cameras = [
            stack.enter_context(_process(folder, "camera.py", "--broker", broker.url, "--id", name))
            for name in ("kitchen", "garage")
        ]
        _ended_well(coordinator)
        for camera in cameras:
            time.sleep(0.2)
            assert camera.poll() is None  # the federation is over, the app's own work is not
            camera.send_signal(signal.SIGINT)
            text = _ended_well(camera)
            assert "picture 0: a " in text
            assert "federation: accepted by" in text
            assert "Traceback" not in text
    assert json.loads((folder / "run" / "summary.json").read_text())["completed"]


def test_vibration(tmp_path: Path) -> None:
    """Two machines learn from their streams; one loses its power, and goes on from its files."""
    folder = tmp_path / "vibration"
    shutil.copytree(EXAMPLES / "vibration", folder, ignore=shutil.ignore_patterns("state", "__pycache__"))
    few = ["--set", "federation.devices=2", "--set", "federation.rounds=6", "--set", "federation.quorum=2"]
    with EmbeddedBroker() as broker, ExitStack() as stack:
        cli = ("-m", "edge_sdk.cli", "coordinator", "federation.toml", "--broker", broker.url, "--out", "run")
        monitor = ("monitor.py", "--broker", broker.url, "--every-s", "0.01", "--number")
        first = stack.enter_context(_process(folder, *monitor, "0"))
        assert first.stdout is not None
        while "window 100" not in (line := first.stdout.readline()):
            assert line, "it ended"
        first.kill()
        first.wait()
        coordinator = stack.enter_context(_process(folder, *cli, *few))
        machines = [stack.enter_context(_process(folder, *monitor, number)) for number in ("0", "1")]
        _ended_well(coordinator)
        for machine in machines:
            machine.send_signal(signal.SIGINT)
            text = _ended_well(machine)
            assert "accepted by" in text
            assert "Traceback" not in text
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [device["rounds_done"] for device in summary["per_device"]] == [6, 6]
    assert summary["per_device"][0]["samples"] >= 40  # those of before the power cut are still there
