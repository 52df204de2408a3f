"""docs/how-to/tls.md, run as it stands: only the port and the broker's name are exchanged."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from certificates import mosquitto
from undrawn import undrawn

import edge_sdk
from coordinator.broker.embedded import MOSQUITTO_CONF
from edge_sdk.protocol import topics
from edge_sdk.transport.base import Connected, Incoming, SendRefused
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.transport import MqttTransport

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "tls.md").read_text(encoding="utf-8")
FEDERATION = '[federation]\nname = "digits"\nmethod = "local"\nclasses = 2\nrounds = 1\ndevices = 1\n'
APP = """
import numpy as np
import edge_sdk

def make():
    part = edge_sdk.Samples(np.zeros((8, 2), np.float32), np.array([0, 1] * 4))
    return edge_sdk.App(model=edge_sdk.NumpyModel(2, (1, 1, 2), seed=1), data=edge_sdk.LocalData(train=part, test=part))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def written(name: str) -> list[str]:
    """The lines that the page writes into a file."""
    (text,) = re.findall(rf"^cat > {name} <<'END'\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)
    return text.splitlines()


def test_the_access_rules_are_those_of_the_protocol() -> None:
    expected = {f"pattern {verb} {topic}" for role, verb, topic in topics.ACCESS_RULES if role == "device"}
    expected |= {f"{role}: topic {verb} {topic}" for role, verb, topic in topics.ACCESS_RULES if role != "device"}
    found, user = set(), ""
    for line in filter(None, written("acl")):
        user = line.removeprefix("user ") + ": " if line.startswith("user ") else user
        found |= set() if line.startswith("user ") else {user + line}
    assert found == expected


def test_the_brokers_settings_hold_the_recommended_ones() -> None:
    settings = [line for line in MOSQUITTO_CONF.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    assert len(settings) == 3
    assert set(settings) <= set(written("mosquitto.conf"))


def test_the_faults_are_named_as_they_are_told() -> None:
    told = Path(reasons.__file__).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE)
    assert len(rows) == 10
    assert [row for row in rows if row not in told] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands of the page that make files have been run."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    made = tmp_path_factory.mktemp("tls_page")
    for script in blocks("sh"):
        done = subprocess.run(["/bin/sh", "-e"], input=script, cwd=made, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (made / "federation.toml").write_text(FEDERATION)
    (made / "my_app.py").write_text(APP)
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The broker of the page."""
    conf = "\n".join(line for line in written("mosquitto.conf") if line != "listener 8883")
    here = re.sub(
        r"\b(ca|broker)\.(pem|key)$|\bacl$|\./$", lambda name: str(folder / name[0]), conf, flags=re.MULTILINE
    )
    with mosquitto(folder, here) as port:
        yield f"mqtts://localhost:{port}"


def command(line: str, url: str) -> list[str]:
    return [sys.executable, "-m", "edge_sdk.cli", *shlex.split(line.replace("mqtts://lab:8883", url))[1:]]


@pytest.mark.broker
@pytest.mark.processes
def test_the_commands_run(folder: Path, url: str) -> None:
    doctor, coordinator, device = blocks("console")[0].splitlines()
    done = subprocess.run(command(doctor, url), cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with ExitStack() as stack:
        environment = {**undrawn(), "OPENBLAS_NUM_THREADS": "1"}
        both = [
            stack.enter_context(
                subprocess.Popen(
                    command(line, url),
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for line in (coordinator, device)
        ]
        for process in both:
            stack.callback(process.kill)
        said = [process.communicate(timeout=60)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        assert "the federation is complete" in said[1]


def link(folder: Path, url: str, name: str, *patterns: str) -> MqttTransport:
    files = edge_sdk.TlsFiles(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
    transport = MqttTransport(url, f"digits-{name}", tls=files, seed=1)
    transport.connect(patterns)
    assert transport.poll(5.0) == Connected()
    return transport


def heard(transport: MqttTransport) -> list[bytes]:
    """All that comes until the last word."""
    frames: list[bytes] = []
    while not frames or frames[-1] != b"last":
        event = transport.poll(5.0)
        if isinstance(event, SendRefused):  # the broker says so to whom it keeps from publishing
            continue
        assert isinstance(event, Incoming), frames
        frames.append(event.frame)
    return frames


@pytest.mark.broker
def test_a_device_cannot_speak_or_listen_for_another(folder: Path, url: str) -> None:
    other = topics.down("acl", "device-08", "task")
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            closing(link(folder, url, "coordinator", *topics.coordinator_subscriptions("acl")))
        )
        device = stack.enter_context(
            closing(link(folder, url, "device-07", *topics.device_subscriptions("acl", "device-07"), other))
        )
        for topic, frame in (
            (topics.up("acl", "device-08", "upd"), b"as another device"),
            (topics.device_status("acl", "device-08"), b"for another device"),
            (topics.down("acl", "device-08", "task"), b"as the coordinator"),
            (topics.control("acl"), b"as the operator"),
            (topics.up("acl", "device-07", "upd"), b"last"),
        ):
            device.send(topic, frame)
        assert heard(coordinator) == [b"last"]
        coordinator.send(other, b"for another device")
        coordinator.send(topics.down("acl", "device-07", "task"), b"last")
        assert heard(device) == [b"last"]
