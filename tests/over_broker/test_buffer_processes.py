"""Buffers over a real broker, with agents in processes of their own, some of which are killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from edge_sim.config import settings
from edge_sim.runs.runner import run

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]

ROUNDS = 24


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker("amqtt") as running:
        yield running.url


def accuracies(summary: dict[str, Any]) -> dict[str, float]:
    assert summary["completed"]
    return {device["id"]: device["accuracy"] for device in summary["per_device"]}


def reached(deployment: Deployment) -> int:
    """The newest version of which the coordinator has reported."""
    return max((int(each) for each in re.findall(r" round (\d+)/", deployment.said("coordinator"))), default=0)


def test_buffers_of_all_devices_come_out_as_in_memory(tmp_path: Path, pictures: Path, broker: str) -> None:
    tables = fleets.tables(pictures, "fedproto", devices=3, rounds=ROUNDS, buffer=3)
    result = run(settings.parse(tables, Path("test.toml")))
    with Deployment(tmp_path, pictures, broker, "fedproto", rounds=ROUNDS, buffer=3) as deployment:
        deployment.start_all()
        deployment.wait_for_round(8)
        assert deployment.end("device-01", signal.SIGKILL) == -signal.SIGKILL
        deployment.start_device("device-01")
        summary = deployment.finish()
    assert accuracies(summary) == {device.id: device.accuracy for device in result.devices}


def test_coordinator_and_device_are_killed_in_the_middle(tmp_path: Path, pictures: Path, broker: str) -> None:
    tables = fleets.tables(pictures, "fedavg", devices=3, rounds=ROUNDS, buffer=2)
    tables["train"]["local_steps"] = 200  # long enough to be killed at
    with Deployment(tmp_path, pictures, broker, tables=tables) as deployment:
        deployment.start_all()
        for version, who in ((3, "coordinator"), (7, "device-02"), (11, "coordinator")):
            deployment.until(lambda least=version: reached(deployment) >= least, f"version {version}")
            assert deployment.end(who, signal.SIGKILL) == -signal.SIGKILL
            if who == "coordinator":
                deployment.start_coordinator(resume=True)
            else:
                deployment.start_device(who)
        summary = deployment.finish()
    assert set(accuracies(summary)) == {"device-00", "device-01", "device-02"}
    assert reached(deployment) == ROUNDS
