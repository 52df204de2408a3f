"""examples/raspberry_pi_camera with made-up pictures: two cameras learn, one loses its power and goes on."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from example_processes import check_interrupted, coordinator_of, ended_well, read_until, running

from coordinator.broker.embedded import EmbeddedBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "raspberry_pi_camera"


@pytest.mark.costly
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_two_cameras_learn_and_one_loses_its_power(tmp_path: Path) -> None:
    folder = tmp_path / "camera"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("state", "__pycache__"))
    few = ["--set", "federation.rounds=40", "--set", "federation.quorum=2"]
    with EmbeddedBroker() as broker, ExitStack() as stack:
        look = ("camera.py", "--broker", broker.url, "--every-s", "0.02", "--id")
        first = stack.enter_context(running(folder, *look, "front", "--pretend", "1"))
        read_until(first, "picture 60:")
        first.kill()
        first.wait()
        coordinator = stack.enter_context(running(folder, *coordinator_of(broker.url, *few)))
        cameras = [
            stack.enter_context(running(folder, *look, name, "--pretend", seed))
            for name, seed in (("front", "2"), ("back", "3"))
        ]
        ended_well(coordinator, 200)
        for camera in cameras:
            check_interrupted(camera)
    devices = json.loads((folder / "run" / "summary.json").read_text())["per_device"]
    assert all(device["rounds_done"] > 20 for device in devices)  # a busy broker may take one for lost, for a round
    front = next(device for device in devices if device["id"] == "front")
    assert front["samples"] > 20  # those of before the power cut are still there


def test_answers_are_the_numbers_of_classes() -> None:
    with running(EXAMPLE, "-c", SCRIPT) as app:
        app.stdin.write("yes\n7\n1\n")
        app.stdin.close()
        assert read_until(app, "answers")[-1].strip() == "answers [1]"


SCRIPT = """
import time, camera
found = camera.typed_answers()
while found.empty():
    time.sleep(0.01)
time.sleep(0.05)
print("answers", list(found.queue))
"""
