"""docs/how-to/upgrade-and-uninstall.md, run as it stands: only broker, folders, names and the services are exchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "upgrade-and-uninstall.md").read_text(encoding="utf-8")
CLEARS = """
import os, sys, time
from contextlib import suppress
import paho.mqtt.client as mqtt
host, port, topic = (sys.argv[sys.argv.index(option) + 1] for option in ("-h", "-p", "-t"))
assert {"--retained-only", "--remove-retained"} <= {*sys.argv}
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
client.on_message = lambda _c, _u, m: m.retain and client.publish(m.topic, b"", qos=1, retain=True)
client.on_connect = lambda *_: client.subscribe(topic, 1)
client.connect(host, int(port))
client.loop_start()
time.sleep(1.0)
client.disconnect()
"""
"""What mosquitto_sub does with these options; it is not on every machine."""


ENDED = """case "$*" in *stop*cameras*|*--now*cameras*)
    while grep -qs '^State:.[^Z]' "/proc/$COORDINATOR/status"; do sleep 0.1; done;;
esac
"""
"""systemctl returns when a service has ended: here once the coordinator, whose parent has not waited for it, is a zombie."""


def retained(url: str) -> set[str]:
    """The topics of which the broker keeps a message."""
    transport, found, linked = MqttTransport(url, "looker", clean=True, seed=1), set[str](), False
    transport.connect(("fl/#",))
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        event = transport.poll(1.0 if linked else 10.0)
        linked |= isinstance(event, Connected)
        if event is None and linked:
            break
        if isinstance(event, Incoming):
            found.add(event.topic)
    transport.close()
    return found


class Machine:
    """Where the page's commands are run: services are processes of this test, and pip installs nothing."""

    def __init__(self, folder: Path, run: Deployment, url: str) -> None:
        self._folder, self._run, self._url, self.programs = folder, run, url, folder / "bin"
        self.units, self.state = folder / "units", folder / "lib"
        self.programs.mkdir()
        self.units.mkdir()
        self.state.mkdir()
        for name in ("systemctl", "pip"):
            self._program(
                name, f'#!/bin/sh\necho {name} "$@" >> {folder}/called\n{ENDED if name == "systemctl" else ""}'
            )
        self._program("edge-sdk", f'#!/bin/sh\nexec {sys.executable} -m edge_sdk.cli "$@"\n')
        (folder / "clears.py").write_text(CLEARS)
        self._program("mosquitto_sub", f'#!/bin/sh\nexec {sys.executable} {folder}/clears.py "$@"\n')

    def _program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def commands(self, block: int, names: dict[str, str]) -> list[str]:
        """Run a block of the page line by line; returns what was asked of services and pip."""
        host, port = self._url.removeprefix("mqtt://").split(":")
        text = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[block]
        exchanged = {
            "mqtt://lab:1883": self._url,
            "-h lab -p 1883": f"-h {host} -p {port}",
            "/etc/systemd/system": str(self.units),
            "/var/lib/edge-sdk": str(self.state),
            "--federation cameras": "--federation tiny",
            "fl/v1/cameras/": "fl/v1/tiny/",
            **names,
        }
        for before, after in exchanged.items():
            text = text.replace(before, after)
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        coordinator = str(self._run.running["coordinator"].pid) if "coordinator" in self._run.running else "none"
        done = subprocess.run(
            ["/bin/sh", "-e"],
            input=text,
            cwd=self._folder,
            env={**os.environ, "PATH": path, "COORDINATOR": coordinator},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        called = self._folder / "called"
        found = called.read_text().splitlines() if called.exists() else []
        called.unlink(missing_ok=True)
        return found


@pytest.mark.broker
@pytest.mark.processes
def test_a_federation_is_upgraded_and_leaves_nothing(tmp_path: Path, pictures: Path) -> None:
    given = {"rounds": "forever", "quorum": 1, "every": "1s"}
    with (
        EmbeddedBroker() as broker,
        Deployment(tmp_path, pictures, broker.url, "fedproto", **given) as run,
    ):
        here = Machine(tmp_path, run, broker.url)
        run.out = here.state / "cameras"
        for name in ("cameras", "cam-7"):
            (here.units / f"edge-sdk-{name}.service").touch()
        run.start_coordinator()
        run.start_device("device-00", "--state", str(here.state / "cam-7"))
        run.until(lambda: "round 2" in run.said("coordinator"), "round 2")

        called = here.commands(0, {})
        assert called == [
            "systemctl stop edge-sdk-cameras.service",
            "pip install -U edge-sdk",
            "systemctl start edge-sdk-cameras.service",
        ]
        assert run.running.pop("coordinator").wait(60) == 0
        assert (tmp_path / "cameras-before.tar").stat().st_size > 1000
        run.start_coordinator(resume=True)
        assert here.commands(1, {})[1] == "systemctl restart edge-sdk-cam-7.service"

        run.until(lambda: "continuing at round" in run.said("coordinator"), "the coordinator")
        run.end("device-00", 15)
        here.commands(2, {})
        assert not (here.state / "cam-7").exists()
        here.commands(3, {"forget cam-7": "forget device-00"})

        assert len(retained(broker.url)) >= 1
        here.commands(4, {})
        assert run.running.pop("coordinator").wait(60) == 0
        assert [*here.units.iterdir(), *here.state.iterdir()] == []
        assert (tmp_path / "cameras-last.tar").exists()
        here.commands(5, {})
        assert retained(broker.url) == set()
