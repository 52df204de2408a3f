"""Upgrades in either order: a coordinator and devices of an earlier build, replaced one after the other by this one.

There is no release yet, so the earlier build is the wheel of an earlier commit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from coordinator.broker.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]
EARLIER = "98032a7d"
"""The commit of the earlier build: before min_new_samples, certificates' ends and lab renew."""
PATIENCE_S = 120.0
TOML = """\
[federation]
name = "alive"
method = "fedproto"
rounds = "forever"
every = "1s"
devices = 2
quorum = 2
classes = 4
feature_dim = 8
join_grace_s = 0.5
retry_s = 0.5
[train]
local_steps = 1
"""
DEVICE = """\
import sys, time
import numpy as np
import edge_sdk
rng = np.random.default_rng(0)
y = rng.integers(0, 4, 64)
x = rng.normal(size=(64, 8)).astype(np.float32) + 3 * np.eye(8, dtype=np.float32)[y]
samples = edge_sdk.Samples(x, y)
agent = edge_sdk.Agent(
    federation="alive", broker=sys.argv[1], identity=sys.argv[2], state=sys.argv[2], stay=True,
    model=edge_sdk.NumpyModel(4, (1, 1, 8), seed=1), data=edge_sdk.LocalData(train=samples, test=samples),
)
agent.on_link(lambda line: print(edge_sdk.__file__, line, flush=True))
agent.run()
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the earlier build, from its wheel."""
    folder = tmp_path_factory.mktemp("earlier")
    tree = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True, check=False)
    if tree.returncode:
        pytest.skip(f"this clone does not hold the commit {EARLIER}")
    source, built = folder / "source", folder / "built"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=tree.stdout, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr[-300:]}")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


class Place:
    """Processes of either build in one folder."""

    def __init__(self, folder: Path, url: str, earlier: Path) -> None:
        self.folder, self._url, self._earlier = folder, url, earlier
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "f.toml").write_text(TOML, encoding="utf-8")
        (folder / "device.py").write_text(DEVICE, encoding="utf-8")

    def start(self, name: str, *, old: bool) -> None:
        if name in self._running:
            self.stop(name)
        again = ["--resume"] if (self.folder / "run" / "checkpoint" / "ledger.db").exists() else []
        words = ["-m", "edge_sdk.cli", "coordinator", "f.toml", "--broker", self._url, "--out", "run", *again]
        if name != "coordinator":
            words = ["device.py", self._url, name]
        environment = {**os.environ, "PYTHONPATH": str(self._earlier if old else ROOT)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, stdout=log, stderr=log, env=environment
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def end(self) -> None:
        for name in list(self._running):
            self.stop(name)

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def more_rounds(self, count: int = 2) -> None:
        """Wait until so many rounds more are complete; each needs both devices."""
        wanted, end_s = self._round() + count, time.monotonic() + PATIENCE_S
        while self._round() < wanted:
            assert all(process.poll() is None for process in self._running.values()), self.logs
            assert time.monotonic() < end_s, self.logs
            time.sleep(0.1)

    def _round(self) -> int:
        path = self.folder / "run" / "progress.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["round"]) if path.exists() else 0


@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.timeout(500)
def test_all_are_upgraded_one_after_the_other(earlier: Path, tmp_path: Path) -> None:
    """A new device meets the old coordinator, and then an old device the new coordinator."""
    with EmbeddedBroker() as broker:
        place = Place(tmp_path, broker.url, earlier)
        try:
            order = ["attic", "coordinator", "cellar"]
            for name in order:
                place.start(name, old=True)
            place.more_rounds()
            assert str(earlier) in (tmp_path / "attic.log").read_text(encoding="utf-8")
            for name in order:
                place.start(name, old=False)
                place.more_rounds()
            assert f"{ROOT}/edge_sdk" in (tmp_path / "attic.log").read_text(encoding="utf-8")
            assert "refused" not in place.logs
        finally:
            place.end()
