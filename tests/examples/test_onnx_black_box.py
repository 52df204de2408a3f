"""examples/onnx_black_box: a file that may only be called teaches, and the same file's last layer learns."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from undrawn import undrawn

from coordinator.broker.embedded import EmbeddedBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_black_box"


@pytest.mark.costly
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_it_learns_and_does_not_forget(tmp_path: Path) -> None:
    for package in ("onnxruntime", "sklearn"):
        pytest.importorskip(package)
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.onnx", "*.npz", "__pycache__", "state", "runs"))
    environment = {**undrawn(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    cli = [sys.executable, "-m", "edge_sdk.cli"]
    subprocess.run([sys.executable, "make_model.py"], cwd=folder, env=environment, check=True)
    asked = [*cli, "inspect", "model.onnx", "--json"]
    said = subprocess.run(asked, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["classes"] == 10
    with EmbeddedBroker() as broker:
        commands = [[*cli, "coordinator", "federation.toml", "--broker", broker.url, "--out", "run"]]
        for name in ("teacher", "learner"):
            app = ["--app", f"my_app:{name}", "--id", name]
            commands.append([*cli, "device", "--broker", broker.url, "--federation", "digits", *app])
        running = [
            subprocess.Popen(
                each, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for each in commands
        ]
        try:
            texts = [process.communicate(timeout=200)[0] for process in running]
        finally:
            for process in running:
                process.kill()
    assert [process.returncode for process in running] == [0, 0, 0], texts
    devices = {each["id"]: each for each in json.loads((folder / "run" / "summary.json").read_text())["per_device"]}
    assert devices["learner"]["accuracy"] > 0.65  # of all ten digits, of which it has five
    assert devices["teacher"].get("accuracy") is None
