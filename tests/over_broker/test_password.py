"""A broker's password is nowhere: not in what a run prints or writes, nor in the commands of its processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import pytest
from deployment import Deployment
from interrupting import CTRL_C

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.url import PASSWORD_VARIABLE, parse_broker_url, without_password
from edge_sim.config import settings
from edge_sim.over_broker import processes
from edge_sim.runs.runner import run

CANARY = "canary-4711"


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """An open broker's address, with a user and a password, which it does not look at."""
    pytest.importorskip("amqtt")
    with EmbeddedBroker("amqtt") as running:
        yield running.url.replace("//", f"//lab:{CANARY}@")


def holding(folder: Path) -> list[str]:
    """The files that hold the password."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.mark.processes
@pytest.mark.broker
def test_everybody_is_interrupted_and_resumes_and_nobody_tells_the_password(
    broker: str, pictures: Path, tmp_path: Path
) -> None:
    result = run(settings.parse(fleets.tables(pictures, devices=3, rounds=12), Path("test.toml")))
    with Deployment(tmp_path, pictures, broker, rounds=12) as deployment:
        deployment.start_coordinator("--no-plots", "--log-format", "text", "--trace")
        for device in deployment.devices:
            deployment.start_device(device)
        deployment.wait_for_round(2)
        for name in ("coordinator", *deployment.devices):
            assert deployment.end(name, signal.SIGINT) in CTRL_C
        assert f"{PASSWORD_VARIABLE}=... edge-sdk coordinator" in deployment.said("coordinator")
        assert f" --trace --no-plots --out {deployment.out} --resume" in deployment.said("coordinator")
        deployment.start_coordinator("--no-plots", "--trace", resume=True)
        for device in deployment.devices:
            deployment.start_device(device)
        summary = deployment.finish()
        assert summary["completed"]
        assert {each["id"]: each["accuracy"] for each in summary["per_device"]} == {
            each.id: each.accuracy for each in result.devices
        }
        assert "no plots: " not in deployment.said(
            "coordinator"
        )  # which it says where it would draw, without matplotlib
        assert not (deployment.out / "plots").exists()
    assert holding(tmp_path) == []


@pytest.mark.processes
@pytest.mark.broker
def test_a_simulation_over_a_broker_never_tells_the_password(
    broker: str, pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        commands.extend(command)
        return subprocess.Popen(command, **options)

    monkeypatch.setattr(processes, "start_process", started)
    config = settings.parse(fleets.tables(pictures, devices=2, rounds=2), Path("f.toml"))
    result = run(config, broker=broker, out=tmp_path / "run")
    assert result.completed
    assert result.transport.startswith("mqtt://lab@")
    assert "--broker" in commands
    assert not [word for word in (*commands, *capfd.readouterr()) if CANARY in word]
    assert holding(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mqtt://lab:secret@host:1883", "mqtt://lab@host:1883"),
        ("mqtts://lab:a@b:c@host", "mqtts://lab@host"),
        ("mqtt://lab@host", "mqtt://lab@host"),
        ("mqtt://[::1]:1883", "mqtt://[::1]:1883"),
        ("memory", "memory"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_the_environment_holds_the_password_of_a_user_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "from the environment")
    assert parse_broker_url("mqtt://lab@host").password == "from the environment"  # made up
    assert parse_broker_url("mqtt://lab:in-the-url@host").password == "in-the-url"  # made up
    assert parse_broker_url("mqtt://host").password is None
    with pytest.raises(UsageError, match="not usable") as caught:
        parse_broker_url(f"mqtt://lab:{CANARY}@host:port")
    assert CANARY not in str(caught.value)
