"""A federation of real processes over a real broker, some of which are killed with SIGKILL at random times."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.common.proc import ProcessStatus, process_status
from coordinator.broker.embedded import EmbeddedBroker, Kind
from coordinator.ledger import Ledger
from edge_sdk.device.store import SqliteStore

DEVICES = ("d-0", "d-1", "d-2")
ROUNDS = 400
PATIENCE_S = 300.0
LONGEST_PAUSE_S = 0.06
"""Longest pause before a kill, about two rounds: a kill may come at any point of a round."""

_APP = """
import os
import numpy as np
import edge_sdk

def make():
    with np.load("data.npz") as arrays:
        mine = np.flatnonzero(arrays["y"] % 3 == int(os.environ["PART"]))
        train = edge_sdk.Samples(arrays["x"][mine], arrays["y"][mine])
        test = edge_sdk.Samples(arrays["x"], arrays["y"])
    scaled = edge_sdk.Preprocess(scale=1 / 16)
    model = edge_sdk.NumpyModel(10, (1, 8, 8), seed=int(os.environ["PART"]), preprocess=scaled)
    return edge_sdk.App(model=model, data=edge_sdk.LocalData(train=train, test=test),
                        public=edge_sdk.PublicSet.load("public.npz"), max_drop=None)
"""


@dataclass(frozen=True)
class Survived:
    """A run that has ended, and the accuracy of its devices."""

    accuracies: dict[str, float]
    kills: int
    seconds: float


def write_app(folder: Path) -> None:
    """Write the app that every run in this folder needs."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    (folder / "kill_app.py").write_text(_APP)
    np.savez(folder / "data.npz", x=images[300:900], y=digits.target[300:900].astype(np.int64))
    np.savez(folder / "public.npz", public=images[:300])


def run(folder: Path, kind: Kind, victim: str, kills: int) -> Survived:
    """Run one federation; `victim`: `coordinator`, `device` (each in turn) or `broker`.

    Raises RuntimeError where the run does not complete, or is over before the last kill.
    """
    begun_s = time.perf_counter()
    with EmbeddedBroker(kind) as broker, _Federation(folder, f"{victim or 'calm'}-{kind}", broker) as federation:
        rng = random.Random(f"{victim} {kills}")
        for kill in range(kills):
            federation.wait_for_round((kill + 1) * ROUNDS // (kills + 2))
            time.sleep(rng.uniform(0, LONGEST_PAUSE_S))
            federation.kill(DEVICES[kill % len(DEVICES)] if victim == "device" else victim)
        accuracies = federation.finish()
        if victim != "broker" and federation.lives() != 1 + len(DEVICES) + kills:
            raise RuntimeError(f"{victim}: a process was killed before it had begun to work")
    return Survived(accuracies, kills, time.perf_counter() - begun_s)


def coordinator_status(folder: Path, kind: Kind, method: str) -> ProcessStatus:
    """Return the status of the coordinator's process shortly before the end of a run without kills."""
    with EmbeddedBroker(kind) as broker, _Federation(folder, f"status-{method}", broker, method) as federation:
        federation.wait_for_round(ROUNDS * 9 // 10)
        status = process_status(federation.pid("coordinator"))
        federation.finish()
    return status


class _Federation:
    """The processes of a federation."""

    def __init__(self, folder: Path, name: str, broker: EmbeddedBroker, method: str = "fedmd") -> None:
        self._folder, self._name, self._broker = folder, name, broker
        self._out, self._log = folder / f"run-{name}", folder / f"{name}.log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        roster = json.dumps(DEVICES)
        (folder / f"{name}.toml").write_text(
            f'[federation]\nname = "{name}"\nmethod = "{method}"\nrounds = {ROUNDS}\ndevices = {len(DEVICES)}\n'
            f"classes = 10\nfeature_dim = 64\ndeadline_s = 10.0\nretry_s = 1.0\nroster = {roster}\n"
            '[train]\nevaluate_every = 20\n[public]\npath = "public.npz"\n'
        )

    def pid(self, who: str) -> int:
        return self._running[who].pid

    def wait_for_round(self, round_: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while self._rounds_done() < round_:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self._name}: round {round_} does not come; see {self._log}")
            time.sleep(0.005)

    def _rounds_done(self) -> int:
        """Return the rounds in the newest coordinator's log; each round needs every process, restarted ones too."""
        log = self._out / "log.jsonl"
        rounds = [line for line in log.read_text().splitlines() if '"round": ' in line] if log.exists() else []
        return int(json.loads(rounds[-1])["round"]) if rounds else 0

    def kill(self, who: str) -> None:
        """Kill a process and start it again at once."""
        if who == "broker":
            os.kill(self._broker.pid, signal.SIGKILL)
            self._broker.wait()
            self._broker.stop()
            self._broker.start()
            return
        process = self._running[who]
        if process.poll() is not None:
            raise RuntimeError(f"{self._name}: {who} had ended before it could be killed: make the run longer")
        process.kill()
        process.wait()
        self._start(who, again=True)

    def finish(self) -> dict[str, float]:
        for who, process in self._running.items():
            if process.wait(PATIENCE_S):
                raise RuntimeError(f"{self._name}: {who} ended with {process.returncode}; see {self._log}")
        told = json.loads((self._out / "summary.json").read_text())
        if not told["completed"]:
            raise RuntimeError(f"{self._name}: {told['reason']}")
        return {row["id"]: row["accuracy"] for row in told["per_device"]}

    def lives(self) -> int:
        """Return how often processes of the federation were started again on their durable state."""
        name = self._name
        ledger = Ledger(self._out / "checkpoint" / "ledger.db")
        stores = [SqliteStore(self._folder / f"state-{name}-{who}" / f"{name}.db") for who in DEVICES]
        for opened in (ledger, *stores):
            opened.close()
        return ledger.epoch - 1 + sum(store.boot_epoch - 1 for store in stores)  # opening them is one more

    def _start(self, who: str, *, again: bool = False) -> None:
        if who == "coordinator":
            arguments = ["coordinator", f"{self._name}.toml", "--out", str(self._out), *(["--resume"] * again)]
        else:
            arguments = ["device", "--federation", self._name, "--app", "kill_app:make", "--id", who]
            arguments += ["--state", f"state-{self._name}-{who}"]
        self._running[who] = self._process([*arguments, "--broker", self._broker.url], part=who[-1])

    def _process(self, arguments: Sequence[str], part: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PART": part, "OPENBLAS_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "edge_sdk.cli", *arguments],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> _Federation:  # noqa: PYI034  # Self is not in Python 3.10
        for who in ("coordinator", *DEVICES):
            self._start(who)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
