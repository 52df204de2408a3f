"""Apps as real processes: signals, the end of the program, and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federated_apps import wait_for
from interrupting import CTRL_C

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.device.store import SqliteStore
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.messages import DeviceStatus
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.processes

APP = """
import os, signal, sys, time
import numpy as np
import edge_sdk
import edge_sdk.errors

def parts():
    samples = edge_sdk.Samples(np.eye(4, dtype=np.float32), np.arange(4))
    model = edge_sdk.NumpyModel(4, (1, 1, 4), seed=1)
    return {"model": model, "data": edge_sdk.LocalData(train=samples)}

def make():
    return edge_sdk.App(**parts())

def agent():
    return edge_sdk.Agent(federation="app", broker=sys.argv[1], identity="left", state=sys.argv[2], **parts())
"""

WAITS = """
from small_app import *
if len(sys.argv) > 3:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
agent = agent()
agent.start()
print("started", flush=True)
time.sleep(60)
"""

FORKS = """
from small_app import *
agent = agent()
agent.start()
child = os.fork()
if child == 0:
    refused = 0
    for call in (agent.start, agent.run, agent.stop, agent.leave):
        try:
            call()
        except edge_sdk.errors.UsageError:
            refused += 1
    sys.exit(0 if refused == 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert agent.running
assert os.path.exists(sys.argv[2] + "/app.db-wal")
agent.stop()
assert not agent.running and agent.error is None
"""

NOBODY = "mqtt://127.0.0.1:9"


def started(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "small_app.py").write_text(APP, encoding="utf-8")
    (folder / "main.py").write_text(script, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "main.py", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.fixture
def statuses() -> Iterator[tuple[str, list[str]]]:
    """A broker's address, and what devices have announced there."""
    pytest.importorskip("amqtt")
    with EmbeddedBroker() as broker:
        watcher, found = MqttTransport(broker.url, "watcher", seed=1), _Announced()
        watcher.connect([topics.device_status("app", "left")])
        found.watcher = watcher
        yield broker.url, found
        watcher.close()


class _Announced(list[str]):
    """The states that a device has announced, in order."""

    watcher: MqttTransport

    def update(self) -> list[str]:
        while (event := self.watcher.poll(0.0)) is not None:
            if isinstance(event, Incoming) and isinstance(message := codec.decode(event.frame).message, DeviceStatus):
                self.append(message.state)
        return self


@pytest.mark.broker
@pytest.mark.parametrize(
    ("number", "handles", "says"),
    [
        (signal.SIGINT, False, "disconnected"),  # KeyboardInterrupt ends the program
        (signal.SIGTERM, True, "disconnected"),  # so does the app's own handler
        (signal.SIGTERM, False, "lost"),  # Python ends at once, and the broker publishes the will
        (signal.SIGKILL, False, "lost"),
    ],
)
def test_an_app_that_ends_says_goodbye_if_it_can(
    tmp_path: Path, statuses: tuple[str, _Announced], number: signal.Signals, says: str, *, handles: bool
) -> None:
    url, announced = statuses
    with started(tmp_path, WAITS, url, str(tmp_path / "state"), *(["handles"] if handles else [])) as app:
        wait_for(lambda: "ready" in announced.update(), within_s=30)
        app.send_signal(number)
        wait_for(lambda: len(announced.update()) > 1, within_s=30)
        app.communicate(timeout=30)
    assert announced == ["ready", says]
    store = SqliteStore(tmp_path / "state" / "app.db")  # free, and whole
    assert store.boot_epoch == 2
    store.close()


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGTERM, (0,)), (signal.SIGINT, CTRL_C)])
def test_a_device_process_keeps_its_state_at_a_signal(
    tmp_path: Path, number: signal.Signals, codes: tuple[int, ...]
) -> None:
    (tmp_path / "small_app.py").write_text(APP, encoding="utf-8")
    arguments = ["--broker", NOBODY, "--federation", "app", "--app", "small_app:make", "--id", "left"]
    with subprocess.Popen(
        [sys.executable, "-m", "edge_sdk.cli", "device", *arguments, "--state", "state"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as device:
        assert device.stdout is not None
        while "refused" not in device.stdout.readline():
            assert device.poll() is None
        device.send_signal(number)
        device.communicate(timeout=30)
    assert device.returncode in codes
    SqliteStore(tmp_path / "state" / "app.db").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_neither_connection_nor_state(tmp_path: Path) -> None:
    """Nor does its end delete the journal that the parent writes."""
    with started(tmp_path, FORKS, NOBODY, str(tmp_path / "state")) as app:
        _, errors = app.communicate(timeout=60)
    assert app.returncode == 0, errors
    SqliteStore(tmp_path / "state" / "app.db").close()
