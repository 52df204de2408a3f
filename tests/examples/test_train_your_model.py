"""examples/train_your_model: five boards, three runtimes, one net of which all layers learn; and the file is served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from example_processes import ONE_THREAD
from undrawn import undrawn

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_your_model"
METHODS = ("local", "fedavg", "fedmd")


@pytest.mark.long  # five processes that export nets: two minutes; test_onnx_fleets and the tests of models have it small
@pytest.mark.torch
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_five_boards_learn_and_the_files_are_served(tmp_path: Path) -> None:
    for package in ("onnxruntime", "torchvision", "onnx"):
        if not find_spec(package):
            pytest.skip(f"no {package}")
    if shutil.which("mosquitto") is None:
        pytest.skip("no mosquitto")
    folder = tmp_path / "example"
    shutil.copytree(
        EXAMPLE, folder, ignore=shutil.ignore_patterns("*.onnx", "*.npz", "*.pt", "camera", "state", "runs")
    )
    environment = {**undrawn(), **ONE_THREAD}
    small = [sys.executable, "make_parts.py", "--width", "0.5", "--steps", "300", "--pictures", "40"]
    subprocess.run(small, cwd=folder, env=environment, check=True)
    fewer = ["--set", "federation.rounds=4", "--set", "train.local_steps=16", "--set", "train.evaluate_every=2"]
    ran = subprocess.run(
        [sys.executable, "run_all.py", *fewer], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert ran.stdout.count("in a plain session") == 5 * len(METHODS)
    means = {}
    for method in METHODS:
        summary = json.loads((folder / "runs" / method / "summary.json").read_text(encoding="utf-8"))
        assert summary["rounds_done"] == 4
        assert {each["runtime"] for each in summary["per_device"]} == {"torch", "onnx", "numpy"}
        means[method] = sum(each["accuracy"] for each in summary["per_device"]) / 5
    before = summary["since_joining"]["before_mean"]
    assert before < 0.35, "the net by day guesses at night, on any machine"  # four classes
    assert min(means.values()) > before + 0.08, (before, means)  # four draws: alone at least 0.17 above
