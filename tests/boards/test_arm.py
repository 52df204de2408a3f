"""A device on the emulated ARM instruction set takes part in a federation, and sends what it would send on x86."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "arm"

pytest.importorskip("torch")
pytest.importorskip("onnx")

pytestmark = [pytest.mark.long, pytest.mark.broker, pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture
def arm(monkeypatch):
    """The benchmark, which has the two runs and their comparison."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    yield importlib.import_module("run")
    sys.modules.pop("run", None)


@pytest.mark.parametrize("name", ["base", "onnx", "armhf"])
def test_an_arm_board_sends_what_x86_sends(arm, tmp_path, name):
    case = next(case for case in arm.CASES if case.name == name)
    if why := arm.prepare(case):
        pytest.skip(why)
    emulated, native = (arm.run(case, tmp_path / kind, emulated=kind == "arm") for kind in ("arm", "x86"))
    assert len(emulated.sent) == arm.ROUNDS
    assert arm.largest_difference(emulated, native) < arm.TOLERANCE
    assert emulated.accuracies[arm.BOARD] == pytest.approx(native.accuracies[arm.BOARD], abs=0.01)


def test_all_layers_train_to_the_weights_of_x86(tmp_path):
    pytest.importorskip("onnxruntime")
    training = importlib.import_module("benchmarks.arm.training")
    if why := training.prepare():
        pytest.skip(why)
    for net, runtime in (("mlp", "numpy"), ("cnn", "onnx")):
        training.write_net(tmp_path, net)
        _, error, moved = training.compare(tmp_path, net, runtime)
        assert error < training.TOLERANCE < moved
