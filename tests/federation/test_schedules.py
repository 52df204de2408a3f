"""A schedule in a whole run: each round has its rate, in every engine, and after a power cut, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sim import run
from edge_sim.config import settings
from edge_sim.engines.base import ExactEngine

STOPS = {"schedule": "step", "schedule_factor": 0.0, "schedule_every_rounds": 1, "schedule_floor": 1e-9}
"""Devices learn in round 0, and next to nothing after it."""
FALLS = {"schedule": "exponential", "schedule_factor": 0.5, "weight_decay": 0.01, "clip_norm": 1.0}


def tables(pictures: Path, train: dict[str, Any], model: str = "softmax", **federation: Any) -> dict[str, Any]:
    plain = fleets.tables(pictures, "local", devices=3, **federation)
    plain["train"] |= {"optimiser": "sgd", **train}
    plain["fleet"] = [{"count": 3, "model": model}]
    return plain


def weights(plain: dict[str, Any], engine: Any = None) -> np.ndarray:
    done = fleets.Run(settings.parse(plain, Path("f.toml")), engine=engine).finished()
    return np.concatenate([device.participant.context.bench.model.weights() for device in done.devices])


def test_devices_stop_where_the_schedule_stops(pictures: Path) -> None:
    after_one, after_three = (weights(tables(pictures, {}, rounds=rounds)) for rounds in (1, 3))
    stopped = weights(tables(pictures, STOPS, rounds=3))
    np.testing.assert_allclose(stopped, after_one, atol=1e-6)
    assert np.abs(after_three - after_one).max() > 1e-2


@pytest.mark.torch
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_engines_agree_on_a_recipe(pictures: Path, optimiser: str) -> None:
    pytest.importorskip("torch")
    from edge_sim.engines.stack.torch_cohort import CohortEngine  # only with torch

    plain = tables(pictures, {**FALLS, "optimiser": optimiser, "learning_rate": 3e-3}, "mlp")
    found = [weights(plain, engine) for engine in (ExactEngine(), CohortEngine())]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_a_power_cut_changes_nothing(pictures: Path) -> None:
    plain = tables(pictures, {**FALLS, "optimiser": "adam", "beta2": 0.9}, rounds=6)
    steady = run(plain)
    plain["fleet"][0] |= {"dropout": 0.5, "dropout_s": 5.0}
    shaken = run(plain)
    accuracies = [[device.accuracy for device in result.devices] for result in (steady, shaken)]
    assert accuracies[0] == accuracies[1]
    assert shaken.time["virtual_s"] > steady.time["virtual_s"]
