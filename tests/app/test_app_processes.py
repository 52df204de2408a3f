"""Apps as real processes: signals, the end of the program, and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federated_apps import agent_of, federation, wait_for
from interrupting import CTRL_C

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.serving.server import Server
from edge_sdk.device.store import SqliteStore
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import DeviceStatus
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub
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

STORE_FORKS = """
import os, sys
import numpy as np
import edge_sdk
store = edge_sdk.SampleStore(sys.argv[2], classes=2, unsaved=1)
name = store.observe(np.zeros(3), 0)
child = os.fork()
if child == 0:
    refused = 0
    adds = lambda: store.observe(np.ones(3), 1)
    for call in (adds, lambda: store.label(name, 1), lambda: store.discard(name), store.flush):
        try:
            call()
        except edge_sdk.errors.UsageError:
            refused += 1
    store.close()
    sys.exit(0 if refused == 4 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
store.observe(np.full(3, 2.0), 1)
store.close()
with edge_sdk.SampleStore(sys.argv[2], classes=2) as again:
    assert len(again) == 2
"""

DEVICE_APPS = """
import federated_apps
import numpy as np
import edge_sdk

def make(model=None):
    samples = federated_apps.samples_of()
    model = model or edge_sdk.NumpyModel(4, (1, 1, 8), seed=1)
    return edge_sdk.App(model=model, data=edge_sdk.LocalData(train=samples, test=samples))

class Broken(edge_sdk.NumpyModel):
    def fit(self, *args, **kwargs):
        raise RuntimeError("the lens is covered")

def broken():
    return make(Broken(4, (1, 1, 8), seed=1))

def wrong():
    return make(edge_sdk.NumpyModel(4, (1, 1, 9), seed=1))
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_adds_no_samples_to_its_parents_store(tmp_path: Path) -> None:
    with started(tmp_path, STORE_FORKS, NOBODY, str(tmp_path / "samples.db")) as app:
        _, errors = app.communicate(timeout=60)
    assert app.returncode == 0, errors


def device(folder: Path, broker: str, app: str) -> subprocess.CompletedProcess[str]:
    """Run `edge-sdk device` to its end."""
    (folder / "device_apps.py").write_text(DEVICE_APPS, encoding="utf-8")
    options = ["--broker", broker, "--federation", "app", "--app", f"device_apps:{app}", "--id", "left"]
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]  # edge-sdk, and federated_apps
    return subprocess.run(
        [sys.executable, "-m", "edge_sdk.cli", "device", *options, "--state", "state"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def served(broker: str, **settings: Any) -> Server:
    return federation(Hub(), transport=MqttTransport(broker, "coordinator-app", manual_ack=True, seed=1), **settings)


def test_a_wrong_model_is_a_mistake_in_the_app(tmp_path: Path) -> None:
    """With exit code 2 systemd does not start the device again."""
    ended = device(tmp_path, NOBODY, "wrong")
    assert ended.returncode == 2
    assert ended.stderr.startswith("edge-sdk: model ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.broker
def test_what_a_model_raises_in_training_is_told_with_its_trace_on_the_device_alone(
    tmp_path: Path, serve: Callable[..., object]
) -> None:
    pytest.importorskip("amqtt")
    with EmbeddedBroker() as broker:
        server = served(broker.url, devices=1, rounds=1)
        thread = serve(server)
        ended = device(tmp_path, broker.url, "broken")
        thread.join(30)
    assert "Traceback" in ended.stderr
    assert "the lens is covered" in ended.stderr
    assert "RuntimeError" in ended.stdout
    assert "the lens" not in ended.stdout
    assert "the lens" not in str(server.record)


@pytest.mark.broker
def test_a_device_that_missed_the_end_of_the_run_ends_well(tmp_path: Path, serve: Callable[..., object]) -> None:
    """Else systemd would start it again for ever."""
    pytest.importorskip("amqtt")
    with EmbeddedBroker() as broker:
        server = served(broker.url, devices=2, rounds=6, quorum=1, deadline_s=0.5)
        left = agent_of(Hub(), "left", broker=broker.url, state=tmp_path / "state")
        right = agent_of(Hub(), "right", broker=broker.url)
        left.on_round(lambda _report: left.stop(0.0))
        thread = serve(server)
        left.start()
        right.start()
        wait_for(lambda: not right.running, within_s=60)
        thread.join(30)
        left.stop()
        ended = device(tmp_path, broker.url, "make")
    assert ended.returncode == 0, ended.stderr
    assert "without this device's closing exchange" in ended.stdout
    assert "join the federation's next run" in ended.stdout
    assert not ended.stderr
