"""examples/raspberry_pi_camera with made-up pictures: two cameras learn, one loses its power and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coordinator.broker.embedded import EmbeddedBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "raspberry_pi_camera"


@contextmanager
def process(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=env, text=True, **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


def read_until(running: subprocess.Popen[str], words: str) -> list[str]:
    lines = []
    while not lines or words not in lines[-1]:
        line = running.stdout.readline()
        assert line, lines
        lines.append(line)
    return lines


@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_two_cameras_learn_and_one_loses_its_power(tmp_path: Path) -> None:
    folder = tmp_path / "camera"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("state", "__pycache__"))
    few = ["--set", "federation.rounds=40", "--set", "federation.quorum=2"]
    with EmbeddedBroker() as broker, ExitStack() as stack:
        look = ("camera.py", "--broker", broker.url, "--every-s", "0.02", "--id")
        first = stack.enter_context(process(folder, *look, "front", "--pretend", "1"))
        read_until(first, "picture 60:")
        first.kill()
        first.wait()
        coordinator = stack.enter_context(
            process(
                folder,
                "-m",
                "edge_sdk.cli",
                "coordinator",
                "federation.toml",
                "--broker",
                broker.url,
                "--out",
                "run",
                *few,
            )
        )
        cameras = [
            stack.enter_context(process(folder, *look, name, "--pretend", seed))
            for name, seed in (("front", "2"), ("back", "3"))
        ]
        said, _ = coordinator.communicate(timeout=200)
        assert coordinator.returncode == 0, said
        for camera in cameras:
            camera.send_signal(signal.SIGINT)
            text, _ = camera.communicate(timeout=60)
            assert camera.returncode == 0, text
            assert "federation: accepted by" in text
            assert "Traceback" not in text
    devices = json.loads((folder / "run" / "summary.json").read_text())["per_device"]
    assert [device["rounds_done"] for device in devices] == [40, 40]
    front = next(device for device in devices if device["id"] == "front")
    assert front["samples"] > 20  # those of before the power cut are still there


def test_answers_are_the_numbers_of_classes() -> None:
    with process(EXAMPLE, "-c", SCRIPT) as running:
        running.stdin.write("yes\n7\n1\n")
        running.stdin.close()
        assert read_until(running, "answers")[-1].strip() == "answers [1]"


SCRIPT = """
import time, camera
found = camera.typed_answers()
while found.empty():
    time.sleep(0.01)
time.sleep(0.05)
print("answers", list(found.queue))
"""
