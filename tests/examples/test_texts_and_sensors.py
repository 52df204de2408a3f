"""The examples of a federation on texts and of one on sensors, on made-up data: devices learn together."""

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "examples" / "texts_and_sensors"

pytestmark = [pytest.mark.torch, pytest.mark.costly]


@pytest.mark.parametrize(("file", "size", "rounds", "nets"), [("news.py", 500, 5, 1), ("activity.py", 4, 2, 4)])
def test_devices_learn_together(file: str, size: int, rounds: int, nets: int, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_SDK_TRACED", "off")  # recording takes longer than these rounds
    example = runpy.run_path(str(HERE / file))
    made_up = example["made_up"](size)
    result = example["run"](*([made_up] if isinstance(made_up, dict) else made_up), rounds=rounds)
    assert result.completed
    assert len({device.model for device in result.devices}) == nets
    assert max(device.accuracy for device in result.devices) > 0.45  # chance: .25 and .33
