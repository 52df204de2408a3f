"""`edge-sdk devices`, `drain`, `forget` and `logs` against a running coordinator with devices, over a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase, RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.cli import main
from edge_sdk.errors import Refused
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker

CLASSES, WIDTH = 4, 8
DEVICES = ("attic", "cellar", "garage")


class Lab:
    """A coordinator and its agents in threads of this process; `garage` keeps its log to itself."""

    def __init__(self, url: str, state: Path) -> None:
        self.url, self._ledger = url, state / "ledger.db"
        self.agents = {name: self._agent(name) for name in DEVICES}
        self.server = self._server()
        self._thread = threading.Thread(target=self.server.run, daemon=True)

    def _server(self) -> Server:
        method = load_method("fedproto")()
        spec = FederationSpec(
            federation="lab",
            method="fedproto",
            contract=method.digest,
            classes=CLASSES,
            rounds=100_000,
            feature_dim=WIDTH,
            train=TrainSpec(local_steps=1),
        )
        policy = RoundPolicy(expected=3, quorum=1, rounds=spec.rounds, exchanges=1, retry_s=0.5)
        transport = MqttTransport(self.url, "coordinator-lab", manual_ack=True, seed=1)
        return Server(spec=spec, policy=policy, method=method, transport=transport, ledger=Ledger(self._ledger))

    def _agent(self, device: str) -> edge_sdk.Agent:
        y = np.arange(16) % CLASSES
        samples = edge_sdk.Samples(np.eye(WIDTH, dtype=np.float32)[y], y)
        model = edge_sdk.NumpyModel(CLASSES, (1, 1, WIDTH), seed=1)
        return edge_sdk.Agent(
            federation="lab",
            broker=self.url,
            identity=device,
            model=model,
            data=edge_sdk.LocalData(train=samples, test=samples),
            sends_logs=device != "garage",
        )

    def start(self) -> None:
        self._thread.start()
        for agent in self.agents.values():
            agent.start()
        self.until(lambda: len(self.server.record.rounds) > 1)

    def until(self, condition) -> None:
        end_s = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.command("drain")
            self._thread.join(30)
        for agent in self.agents.values():
            agent.stop()

    def command(self, *words: str) -> int:
        return main([*words, "--broker", self.url, "--federation", "lab"])


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker("amqtt") as running:
        yield running.url


@pytest.fixture
def lab(broker: str, tmp_path: Path) -> Iterator[Lab]:
    found = Lab(broker, tmp_path)
    found.start()
    yield found
    found.stop()


def test_the_desk_of_a_lab(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.command("devices", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["federation"] == "lab"
    assert [entry["device"] for entry in shown["devices"]] == [*DEVICES]
    assert {entry["sdk"] for entry in shown["devices"]} == {edge_sdk.__version__}
    assert all(entry["round"] > 0 and entry["here_s"] >= 0 for entry in shown["devices"])

    assert lab.command("devices") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == [*DEVICES]

    assert lab.command("logs", "attic", "--lines", "1") == 0
    assert "accuracy" in capsys.readouterr().out
    assert lab.command("logs", "attic", "--lines", "1", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    assert "accuracy" in line
    assert lab.command("logs", "garage") == 2
    assert "garage" in capsys.readouterr().err

    assert lab.command("drain", "cellar") == 0
    lab.until(lambda: not lab.agents["cellar"].running)
    error = lab.agents["cellar"].error
    assert isinstance(error, Refused)
    assert error.reason == "drained"
    capsys.readouterr()
    assert lab.command("drain", "cellar", "--undo", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["operation"], told["device"]) == ("resume", "cellar")
    assert "cellar" in told["answer"]

    lab.agents["garage"].stop()
    assert lab.command("forget", "garage") == 0
    lab.until(lambda: "garage" not in lab.server.hellos)
    assert lab.command("forget", "garaje") == 2
    assert capsys.readouterr().err.count("\n") == 1

    assert lab.command("drain") == 0
    lab.until(lambda: lab.server.drained)
    assert lab.server.rounds.phase is RoundPhase.DRAINED


@pytest.mark.parametrize("words", [["devices"], ["logs", "attic"]])
def test_nobody_answers(broker: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*words, "--broker", broker, "--federation", "nowhere", "--timeout", "0.3"])
    error = capsys.readouterr().err
    assert code == 1
    assert "no coordinator of 'nowhere'" in error
    assert "0.3 s" in error


def test_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["devices", "--broker", "mqtt://127.0.0.1:1", "--federation", "lab", "--timeout", "0.3"])
    assert code == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["devices", "--federation", "Not an id"],
        ["drain", "Not/an/id", "--federation", "lab"],
        *(["devices", "--federation", "lab", "--timeout", seconds] for seconds in ("0", "-1", "nan", "3600")),
        ["logs", "--federation", "lab"],
        ["logs", "attic", "--federation", "lab", "--lines", "1000"],
    ],
)
def test_a_mistake_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*words, "--broker", "mqtt://127.0.0.1:1"])
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
