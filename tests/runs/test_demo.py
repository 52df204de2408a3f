"""`edge-sdk demo` runs on a base install, in seconds, and shows that knowledge helps and rubbish is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.cli import main
from edge_sim.data.sources.digits import read_drawn_digits
from edge_sim.runs.demo_command import FILE

WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(","), None))  # importing any of them fails from now on
from edge_sdk.cli import main
sys.exit(main(sys.argv[2:]))
"""
EXTRAS = (
    *("torch", "torchvision", "onnx", "onnxruntime", "sklearn", "scipy", "threadpoolctl", "ray", "PIL", "isal"),
    *("matplotlib", "rich", "amqtt", "tomli_w", "cryptography", "starlette", "uvicorn"),
)
"""What no base install has."""


def on_a_base_install(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS, ",".join(EXTRAS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_devices_with_different_models_learn_and_the_broken_one_is_refused_on_a_base_install():
    done = on_a_base_install("demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    honest = [device for device in found["per_device"] if device["id"] not in found["refused_frames"]]
    assert found["refused_frames"].keys() == {"device-05"}
    assert len({device["model"] for device in honest}) == 3
    assert {device["runtime"] for device in honest} == {"numpy"}
    assert all(device["accuracy"] > device["standalone_accuracy"] + 0.2 for device in honest)


def test_its_lines_name_each_device_and_both_accuracies(capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--seed", "1"]) == 0
    told = capsys.readouterr()
    assert not told.err
    rows = [line for line in told.out.splitlines() if line.startswith("device-")]
    assert [row.split()[0] for row in rows] == [f"device-0{number}" for number in range(6)]
    assert all(row.count("%") == 2 for row in rows[:5])
    assert "refused" in rows[5]


def test_drawn_digits_follow_from_the_seed_and_hold_every_class_equally():
    one, same, other = (read_drawn_digits(0.2, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.train.x, same.train.x)
    assert (one.train.x != other.train.x).any()
    assert one.train.x.shape == (1600, 12, 12)
    assert one.train.x.dtype == np.uint8
    assert set(np.bincount(one.train.y)) == {160}
    assert set(np.bincount(one.test.y)) == {40}


def test_a_simulation_without_matplotlib_says_that_it_has_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shorter = ["--set", "federation.rounds=1", "--set", "run.standalone=off"]
    assert main(["simulate", str(FILE), "--out", str(tmp_path / "run"), *shorter]) == 0
    assert "edge-sdk[coordinator]" in capsys.readouterr().out
    assert (tmp_path / "run" / "summary.json").exists()
