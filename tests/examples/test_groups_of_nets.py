"""Nets of four architectures learn together in one federation: on texts, and on series."""

from __future__ import annotations

import numpy as np
import pytest

import edge_sim

pytestmark = [pytest.mark.torch, pytest.mark.costly]


def texts(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, 12): a third of the words tell the class."""
    y = rng.integers(0, 3, count)
    of_class = rng.random((count, 12)) < 0.35
    return np.where(of_class, 1 + 10 * y[:, None], 31) + rng.integers(0, 10, (count, 12)), y


def series(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Series (n, 16, 2): a rhythm for each class under noise."""
    y = rng.integers(0, 3, count)
    rhythm = np.sin((1 + y)[:, None] * np.linspace(0, 2 * np.pi, 16))
    return (rhythm[:, :, None] + rng.normal(0, 0.8, (count, 16, 2))).astype(np.float32), y


@pytest.mark.parametrize(
    ("make", "data", "group", "nets"),
    [
        (texts, {"kind": "tokens", "vocabulary": 41}, "group:text-4", {"bag", "cnn", "gru", "transformer"}),
        (series, {"kind": "series"}, "group:series-4", {"cnn", "gru", "lstm", "transformer"}),
    ],
)
def test_nets_of_four_architectures_teach_each_other(make, data, group, nets, monkeypatch) -> None:
    """FedMD: each holds 20 labelled samples of its own; 200 public ones, without labels, carry what the others know."""
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_SDK_TRACED", "off")  # recording takes longer than these rounds
    rng = np.random.default_rng(0)
    tables = {
        "federation": {"name": "four", "method": "fedmd", "rounds": 5, "devices": 4, "feature_dim": 16},
        "data": {**data, "public": 200},
        "partition": {"kind": "iid"},
        "train": {"optimiser": "adam", "momentum": 0.0, "learning_rate": 0.01, "local_steps": 10},
        "method": {"form": "digest", "digest_steps": 10},
        "fleet": [{"count": 4, "model": group}],
    }
    result = edge_sim.run(tables, data=(*make(280, rng), *make(200, rng)))
    assert {device.model.partition("-")[2] for device in result.devices} == nets
    alone = np.array([device.standalone_accuracy for device in result.devices])
    together = np.array([device.accuracy for device in result.devices])
    assert together.min() > 0.42  # chance: .33
    assert together.mean() > alone.mean() + 0.02
