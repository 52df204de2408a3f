"""The same federations as real processes over a real broker, some of which are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import pytest
from deployment import Deployment

from coordinator.broker import EmbeddedBroker
from edge_sim import config as configs
from edge_sim.runner import run

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]

ROUNDS = 40


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker("amqtt") as running:
        yield running.url


@pytest.fixture(scope="module")
def expected(pictures: Path) -> dict[str, float]:
    """The accuracies of the same federation in memory."""
    tables = fleets.tables(pictures, devices=3, rounds=ROUNDS)
    result = run(configs.parse(tables, Path("test.toml")))
    return {device.id: device.accuracy for device in result.devices}


@pytest.fixture
def deployment(tmp_path: Path, pictures: Path, broker: str) -> Iterator[Deployment]:
    with Deployment(tmp_path, pictures, broker, rounds=ROUNDS, name="tiny") as ready:
        yield ready


def accuracies(summary: dict[str, Any]) -> dict[str, float]:
    assert summary["completed"]
    return {device["id"]: device["accuracy"] for device in summary["per_device"]}


def test_nothing_goes_wrong(deployment: Deployment, expected: dict[str, float]) -> None:
    deployment.start_all()
    assert accuracies(deployment.finish()) == expected


def test_a_device_is_killed_and_started_again(deployment: Deployment, expected: dict[str, float]) -> None:
    deployment.start_all()
    for round_, device in ((8, "device-01"), (20, "device-02")):
        deployment.wait_for_round(round_)
        assert deployment.end(device, signal.SIGKILL) == -signal.SIGKILL
        deployment.start_device(device)
    assert accuracies(deployment.finish()) == expected


def test_the_coordinator_is_killed_and_resumes(deployment: Deployment, expected: dict[str, float]) -> None:
    deployment.start_all()
    for round_ in (8, 20):
        deployment.wait_for_round(round_)
        assert deployment.end("coordinator", signal.SIGKILL) == -signal.SIGKILL
        deployment.start_coordinator(resume=True)
    assert accuracies(deployment.finish()) == expected


def test_everybody_is_interrupted_and_goes_on(deployment: Deployment, expected: dict[str, float]) -> None:
    deployment.start_all()
    deployment.wait_for_round(8)
    assert deployment.end("coordinator", signal.SIGINT) == 130
    for device in deployment.devices:
        assert deployment.end(device, signal.SIGINT) == 130
    assert "interrupted; go on with: edge-sdk coordinator federation.toml" in deployment.said("coordinator")
    deployment.start_coordinator(resume=True)
    for device in deployment.devices:
        deployment.start_device(device)
    assert accuracies(deployment.finish()) == expected
