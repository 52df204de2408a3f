"""A coordinator without an end over a broker: killed and started again while agents live, and changed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import federated_apps as apps
import pytest

import edge_sdk
from coordinator.broker.embedded import EmbeddedBroker

PATIENCE_S = 90.0
TOML = """\
[federation]
name = "alive"
method = "fedproto"
rounds = "forever"
every = "1s"
devices = 2
quorum = 1
classes = 4
feature_dim = 8
join_grace_s = 0.5
retry_s = 0.5
[train]
learning_rate = {rate}
local_steps = 1
"""


class Coordinator:
    """`edge-sdk coordinator` as a process, started and killed again."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "coordinator.log"

    def start(self, *, rate: float = 0.01, resume: bool = False) -> None:
        (self._folder / "f.toml").write_text(TOML.format(rate=rate), encoding="utf-8")
        command = [sys.executable, "-m", "edge_sdk.cli", "coordinator", "f.toml", "--broker", self._url, "--out", "run"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(["--resume"] if resume else [])], cwd=self._folder, stdout=log, stderr=log
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(30)
        self._process = None

    @property
    def round(self) -> int:
        path = self._folder / "run" / "progress.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["round"]) if path.exists() else 0

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def until(self, round_: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while self.round < round_:
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end_s, self.log
            time.sleep(0.1)


def agent(url: str, name: str, state: Path) -> edge_sdk.Agent:
    samples = apps.samples_of()
    return edge_sdk.Agent(
        federation="alive",
        broker=url,
        identity=name,
        model=edge_sdk.NumpyModel(apps.CLASSES, (1, 1, 8), seed=1),
        data=edge_sdk.LocalData(train=samples, test=samples),
        state=state / name,
        stay=True,
    )


@pytest.mark.processes
def test_it_is_killed_changed_and_stopped_and_agents_stay(tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        coordinator = Coordinator(tmp_path, broker.url)
        agents = [agent(broker.url, name, tmp_path / "states") for name in ("attic", "cellar")]
        for each in agents:
            each.start()
        try:
            coordinator.start()
            coordinator.until(3)
            coordinator.kill()
            before = coordinator.round
            coordinator.start(resume=True)
            coordinator.until(before + 2)
            coordinator.kill(signal.SIGINT)
            before = coordinator.round
            coordinator.start(rate=0.005, resume=True)
            coordinator.until(before + 3)
            assert "a new generation: train.learning_rate 0.01 becomes 0.005" in coordinator.log
            assert all(each.running and each.error is None for each in agents)
            assert {each.status().state for each in agents} <= {"idle", "training", "reporting"}
            assert all(each.status().round > before for each in agents)
        finally:
            coordinator.kill(signal.SIGINT)
            for each in agents:
                each.stop()
