"""The same seed gives the same run, on whatever network it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from seeds import SEEDS, seeded

from coordinator.results.report.summary import summary, without_times
from edge_sdk.transport.memory.hub import Faults
from edge_sim.runs.runner import run

METHODS = ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)]
CASES = [*seeded(SEEDS, "fedmd"), *seeded(SEEDS // 3, "fedal", marks=(pytest.mark.torch,))]
LOSSY = Faults(drop=0.2, duplicate=0.2, delay=0.3, delay_s=3.0)
BREAKING = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_s=3.0, disconnect=0.03, disconnect_s=7.0)


@pytest.fixture(scope="module")
def clean(pictures: Path) -> dict[str, fleets.Run]:
    return {method: fleets.Run(fleets.built(pictures, method)).finished() for method in ("local", "fedmd", "fedal")}


def kept(tables: dict[str, Any]) -> dict[str, Any]:
    result = run(tables)
    assert result.completed
    return without_times(summary(result))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_twice_gives_the_same_summary(pictures: Path, method: str) -> None:
    tables = fleets.tables(pictures, method)
    tables["run"]["standalone"] = True
    tables["faults"] = {"drop": 0.1, "duplicate": 0.1, "delay": 0.2, "seed": 3}
    first, second = kept(tables), kept(tables)
    assert first == second
    assert first["accuracy"]["standalone_mean"] > 0.25  # better than a guess among four
    assert first["updates"]["duplicate"] > 0


def test_another_seed_gives_another_run(pictures: Path) -> None:
    one, other = (kept(fleets.tables(pictures, "fedmd", seed=seed)) for seed in (1, 2))
    assert one["accuracy"] != other["accuracy"]


@pytest.mark.parametrize(("method", "seed"), CASES)
def test_faults_change_no_bit(pictures: Path, clean: dict[str, fleets.Run], method: str, seed: int) -> None:
    run = fleets.Run(fleets.built(pictures, method), faults=BREAKING if seed % 3 == 2 else LOSSY, seed=seed)
    run.finished()
    assert run.result.completed
    assert run.coordinator_bytes == clean[method].coordinator_bytes
    assert run.model_bytes == clean[method].model_bytes
    assert run.result.updates["accepted"] == clean[method].result.updates["accepted"]
    assert run.clock.now_s > clean[method].clock.now_s


def test_each_upload_counts_once_even_if_two_come_in_one_breath(pictures: Path, clean: dict[str, fleets.Run]) -> None:
    """Every frame doubled and nothing held up: both copies share one commit."""
    run = fleets.Run(fleets.built(pictures), faults=Faults(duplicate=1.0)).finished()
    accepted = clean["fedmd"].result.updates["accepted"]
    assert run.result.updates["accepted"] == accepted == 6 * 4
    assert run.result.updates["duplicate"] > accepted / 2
    assert run.coordinator_bytes == clean["fedmd"].coordinator_bytes
    assert run.model_bytes == clean["fedmd"].model_bytes


def test_order_of_arrival_changes_no_bit(pictures: Path, clean: dict[str, fleets.Run]) -> None:
    run = fleets.Run(fleets.built(pictures))
    for i, device in enumerate(run.devices):
        run.slow_down(device.device.kit.id, 3.0 - 0.5 * i)  # the last one is the first to answer
    run.finished()
    assert run.coordinator_bytes == clean["fedmd"].coordinator_bytes
    assert run.model_bytes == clean["fedmd"].model_bytes


def test_private_steps_are_those_of_a_device_alone(pictures: Path) -> None:
    """A run without knowledge is `local` with the same batches: FedMD of one device has nobody to learn from."""
    tables = fleets.tables(pictures, "fedmd", devices=1)
    tables["partition"] = {"kind": "iid"}
    alone = fleets.tables(pictures, "local", devices=1)
    alone["partition"] = {"kind": "iid"}
    states = [
        fleets.Run(fleets.settings.parse(each, Path("t.toml"))).finished().model_bytes for each in (tables, alone)
    ]
    assert states[0] == states[1]


def test_knowledge_helps(clean: dict[str, fleets.Run]) -> None:
    """Devices hold two of four classes; on a test of all four, exchange beats training alone."""
    mean = {method: np.mean([device.accuracy for device in run.result.devices]) for method, run in clean.items()}
    assert mean["local"] < mean["fedmd"]
    assert mean["local"] < mean["fedal"]
