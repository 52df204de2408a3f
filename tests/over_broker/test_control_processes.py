"""A control group of devices that are processes of their own, over a broker, through a kill of the coordinator."""

from __future__ import annotations

import signal
from pathlib import Path

import fleets
import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from edge_sim.config import settings
from edge_sim.runs.runner import run

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]


def test_a_killed_coordinator_goes_on_with_the_same_group_as_in_memory(pictures: Path, tmp_path: Path) -> None:
    given = {"rounds": 16, "control": 0.34, "control_rounds": 4}
    memory = run(settings.parse(fleets.tables(pictures, devices=3, **given), Path("test.toml")))
    with EmbeddedBroker("amqtt") as broker, Deployment(tmp_path, pictures, broker.url, **given) as ready:
        ready.start_all()
        ready.wait_for_round(6)
        ready.end("coordinator", signal.SIGKILL)
        ready.start_coordinator(resume=True)
        found = ready.finish()
    assert {device["id"]: device.get("alone") for device in found["per_device"]} == {
        device.id: device.sums.get("alone") for device in memory.devices
    }
    assert found["uplift"] == memory.uplift
    assert found["uplift"]["text"] in ready.said("coordinator")
