"""The processes of `benchmarks.reliability.hour`: a lab with its broker, a coordinator and devices, in one folder.

Each is the command that its page in docs/how-to names.  This process stands in for systemd: what dies is started again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.common.proc import process_status
from coordinator.config import to_toml
from coordinator.lab.broker_settings import running_broker

APP = Path(__file__).with_name("hour_app.py")
DEVICES = tuple(f"device-{number:02}" for number in range(1, 11))
RETURNS_S, ENDS_S, COMMAND_S = 1.0, 60.0, 180.0
"""After so many seconds what died is started again; a process that is asked to end has so long; a command as well."""
TRIES = 4
"""How often an operator gives an order that nobody answers."""


@dataclass(frozen=True)
class Builds:
    """The folders of the packages: of the present build, and of an earlier one, which may be the same."""

    now: Path
    earlier: Path


@dataclass
class Place:
    """All processes, and what they are started with."""

    folder: Path
    builds: Builds
    settings: dict[str, Any]
    between_s: Mapping[str, float]
    """Seconds between two samples of each device."""
    private: str
    """The device whose owner lets no weights leave it."""
    old: set[str] = field(default_factory=set)
    """The processes of the earlier build."""
    identities: dict[str, Path] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    memory: list[dict[str, Any]] = field(default_factory=list)
    closed: list[tuple[float, int]] = field(default_factory=list)
    """When progress.json showed each new round, and its number."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        shutil.copy(APP, self.folder / APP.name)
        digits = load_digits()
        labels = digits.target.astype(np.int64)
        np.savez(self.folder / "digits.npz", images=digits.images.astype(np.uint8), labels=labels)
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_on, daemon=True)

    # -- the lab ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the lab, enrol the devices, and start everything."""
        self.command("lab", "init", "lab", "--host", "localhost", "--port", f"{_free_port()}", "--bind", "127.0.0.1")
        self.start("lab")
        self.enrol(*DEVICES)
        self.start("coordinator")
        for device in DEVICES:
            self.start(device)
        self._watch.start()

    def enrol(self, *devices: str) -> None:
        """Claim identities for devices, and enrol them in new folders."""
        self.command("lab", "claim", "--lab", "lab", *devices)
        for device in devices:
            folder = self.folder / f"board-{device}-{len(list(self.folder.glob(f'board-{device}-*')))}" / device
            folder.parent.mkdir()
            self.command("enroll", "--claim", f"lab/claims/{device}.claim", "--identity", str(folder))
            self.identities[device] = folder

    def operator(self, *words: str) -> str:
        """Give an operator's order, again if nobody answered it."""
        order, left = (*words, "--identity", "lab/operator", "--federation", "hour"), TRIES
        while True:
            left -= 1
            with suppress(*[RuntimeError] * bool(left)):
                return self.command(*order)

    def command(self, *words: str, build: Path | None = None) -> str:
        """Run a command of the SDK, and return what it printed.  Raises RuntimeError if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "edge_sdk.cli", *words],
            cwd=self.folder,
            env=self._environment(build or self.builds.now),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        said = done.stdout + done.stderr
        with (self.folder / "commands.log").open("a", encoding="utf-8") as log:
            log.write(f"$ edge-sdk {' '.join(words)}\n{said}")
        if done.returncode:
            raise RuntimeError(f"edge-sdk {' '.join(words)}: {said}")
        return said.strip()

    # -- processes --------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process: `lab`, `coordinator` or a device."""
        words, opened = ["-m", "edge_sdk.cli", "lab", "serve", "lab"], self.said("lab").count("is open at")
        if name == "coordinator":
            (self.folder / "federation.toml").write_text(to_toml(self.settings), encoding="utf-8")
            again = ["--resume"] if (self.folder / "run" / "checkpoint" / "ledger.db").exists() else []
            words = ["-m", "edge_sdk.cli", "coordinator", "federation.toml", "--lab", "lab", "--out", "run", *again]
        elif name in DEVICES:
            words = [APP.name, str(self.identities[name]), f"state-{name}", f"{self.between_s[name]}"]
            words += ["private"] * (name == self.private)
        build = self.builds.earlier if name in self.old else self.builds.now
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=self._environment(build),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if name == "lab":
            self.until(lambda: self.said("lab").count("is open at") > opened, "the lab opens")

    def kill(self, *names: str, off_s: float = RETURNS_S) -> None:
        """Kill processes with SIGKILL, all at once, and start them again after a while."""
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running[name].wait()
        time.sleep(off_s)
        for name in names:
            self.start(name)

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ask a process to end, and return its exit code."""
        process = self.running[name]
        process.send_signal(number)
        code = process.wait(ENDS_S)
        del self.running[name]
        return code

    def signal_mosquitto(self, number: int, *, keeper: bool = False) -> None:
        """Send a signal to the lab's mosquitto; keeper: and before that to the process that keeps it running."""
        found = running_broker(self.folder / "lab")
        if found is None:
            raise RuntimeError("mosquitto does not run")
        if keeper:
            status = Path(f"/proc/{found}/status").read_text(encoding="utf-8")
            os.kill(int(status.partition("PPid:")[2].split()[0]), number)
        os.kill(found, number)

    def close(self) -> None:
        """End everything."""
        self._over.set()
        self._watch.join()
        for name in [*DEVICES, "coordinator", "lab"]:
            if name in self.running:
                self.end(name)

    def kill_all(self) -> None:
        """Kill whatever is left, after a failure."""
        self._over.set()
        for process in self.running.values():
            process.kill()
            process.wait()
        with suppress(RuntimeError):
            self.signal_mosquitto(signal.SIGKILL, keeper=True)

    # -- what is seen -----------------------------------------------------------------------------------------------

    def said(self, name: str) -> str:
        """The log of a process, of all its lives."""
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def progress(self) -> Mapping[str, Any]:
        """The coordinator's progress.json, or an empty table before it exists."""
        try:
            found: Mapping[str, Any] = json.loads((self.folder / "run" / "progress.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def until(self, condition: Any, what: str, most_s: float = COMMAND_S) -> None:
        """Wait for a condition.  Raises RuntimeError."""
        end_s = time.monotonic() + most_s
        while not condition():
            if time.monotonic() > end_s:
                raise RuntimeError(f"after {most_s:g} s still not so: {what}")
            time.sleep(0.05)

    def _look_on(self) -> None:
        round_, measured_s = 0, 0.0
        while not self._over.wait(0.2):
            now = int(self.progress.get("round", 0))
            if now != round_:
                self.closed.append((time.time(), now))
                round_ = now
            if time.monotonic() - measured_s > 10.0:
                self.memory.append({"time_s": time.time(), **self._resident()})
                measured_s = time.monotonic()

    def _resident(self) -> dict[str, float]:
        found = {}
        pids = {name: process.pid for name, process in list(self.running.items())}
        for name, pid in {**pids, "mosquitto": running_broker(self.folder / "lab") or 0}.items():
            with suppress(OSError, KeyError):  # it has just ended
                found[name] = round(process_status(pid).resident_mib, 1)
        return found

    def _environment(self, build: Path) -> dict[str, str]:
        own = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        }
        return {**own, "PYTHONPATH": str(build), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
