"""A device in JavaScript, written from the protocol page, among two in numpy, over a real broker."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import federation, load_toml, read_settings
from coordinator.ledger import Ledger
from coordinator.serving.server import Server
from edge_sdk.agent.agent import Agent
from edge_sdk.agent.app import App
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.mqtt.transport import MqttTransport

HERE = Path(__file__).parents[2] / "examples/other_language"
NODE = shutil.which("node")
KILL_AT_ROUND = 3
ROUNDS = 8
LIMIT_S = 60.0

pytestmark = [pytest.mark.broker, pytest.mark.processes]


def missing() -> str:
    """What this machine lacks; empty if nothing."""
    if NODE is None:
        return "node is not on PATH"
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(int(part) for part in version.lstrip("v").split(".")[:2]) < (20, 15):
        return f"node {version}: 20.15 or newer is needed"
    absent = [name for name in ("mqtt", "@msgpack/msgpack") if not (HERE / "node_modules" / name).exists()]
    return f"run `npm install` in examples/other_language: {', '.join(absent)} missing" if absent else ""


@pytest.fixture(scope="module", autouse=True)
def _node() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)


def module(name: str):
    spec = importlib.util.spec_from_file_location(f"other_language_{name}", HERE / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Teacher:
    """The JavaScript device as a process that can be killed and started again."""

    def __init__(self, url: str, folder: Path) -> None:
        self.command = [NODE, str(HERE / "device.mjs"), "--broker", url, "--federation", "digits", "--id", "teacher"]
        self.command += ["--teacher", str(folder / "teacher.json"), "--state", str(folder / "state")]
        self.folder = folder
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        log = (self.folder / f"node-{self.starts}.log").open("wb")
        with log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def said(self) -> str:
        return (self.folder / f"node-{self.starts}.log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def learner(app: App, name: str, url: str) -> Agent:
    return Agent(federation="digits", broker=url, identity=name, model=app.model, data=app.data, public=app.public)


def test_its_own_tests_pass():
    """Frames, public batches and session against the golden bytes."""
    command = [NODE, "--test", "--test-reporter=tap"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    golden = len(list((HERE / "../../tests/protocol/golden").resolve().glob("*.hex")))
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) > golden


def test_it_teaches_two_numpy_devices_and_survives_a_kill(broker, tmp_path, monkeypatch):
    module("make_teacher").main(tmp_path)
    monkeypatch.chdir(tmp_path)  # my_app reads public.npz of the present folder
    make = module("my_app").make
    tables = load_toml(HERE / "federation.toml", [f"federation.rounds={ROUNDS}", "federation.retry_s=0.5"])
    ready = federation(read_settings(tables, HERE / "federation.toml"), public=PublicSet.load("public.npz").spec)
    server = Server(
        spec=ready.spec,
        policy=ready.policy,
        method=method_of(ready.spec),
        transport=MqttTransport(broker.url, "coordinator-digits", manual_ack=True, seed=1),
        ledger=Ledger(None),
    )
    apps = {"left": make("0,1,2,3,4"), "right": make("5,6,7,8,9")}
    learners = [learner(app, name, broker.url) for name, app in apps.items()]
    teacher = Teacher(broker.url, tmp_path)
    end_s = time.monotonic() + LIMIT_S

    def check() -> None:
        if time.monotonic() > end_s:
            pytest.fail(f"round {server.rounds.place} after {LIMIT_S:.0f} s; the device said: {teacher.said()}")
        if teacher.starts == 1 and server.rounds.place.round >= KILL_AT_ROUND:
            teacher.kill()
            teacher.start()

    try:
        for agent in learners:
            agent.start()
        server.run(check=check)
        for agent in learners:
            agent.stop()
        assert teacher.process.wait(10) == 0, teacher.said()
    finally:
        teacher.kill()
    assert "the federation is complete" in teacher.said()
    assert (tmp_path / "state/digits-teacher.boot").read_text() == "2\n"

    record = server.record
    assert record.rounds_done == {"left": ROUNDS, "right": ROUNDS, "teacher": ROUNDS}
    assert record.updates["accepted"] == 3 * (ROUNDS + 1)
    assert record.updates["refused"] == 0
    assert set(record.refused_frames) <= {"teacher"}
    again = set(record.refused_frames.get("teacher", ()))  # none, if the kill came before an upload was sent
    assert again <= {"stale", "duplicate"}  # after the kill it sends its last upload again
    assert record.refused_devices == {}
    assert set(server.hellos["teacher"].capabilities) == {"predict"}
    accuracy = record.accuracy[ROUNDS]
    assert set(accuracy) == {"left", "right"}
    assert min(accuracy.values()) > 0.55  # half of the digits were never on either device


@pytest.mark.parametrize(
    ("samples", "encoding", "said"),
    [
        (5, "f32", ("refused (public-set)", "copy the federation's public set")),
        (None, "int8-row", ("refused (encoding)", "take these lines out of [encoding]")),
    ],
)
def test_it_leaves_a_federation_that_it_cannot_serve(broker, tmp_path, samples, encoding, said):
    """Another public set or encoding: refused by the coordinator, and the reason reaches the terminal."""
    module("make_teacher").main(tmp_path)
    tables = load_toml(HERE / "federation.toml", [f"encoding.logits={encoding}"])
    public = PublicSet(PublicSet.load(tmp_path / "public.npz").samples[:samples]).spec
    ready = federation(read_settings(tables, HERE / "federation.toml"), public=public)
    server = Server(
        spec=ready.spec,
        policy=ready.policy,
        method=method_of(ready.spec),
        transport=MqttTransport(broker.url, "coordinator-digits", manual_ack=True, seed=1),
        ledger=Ledger(None),
    )
    teacher = Teacher(broker.url, tmp_path)
    try:
        server.run(check=lambda: "" if teacher.process.poll() is None else "the device has left")
        assert teacher.process.wait(10) == 1
    finally:
        teacher.kill()
    assert all(words in teacher.said() for words in said)
