"""The units of the pages under a supervisor that keeps their settings: whatever dies or stands still comes back."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coordinator.lab import broker_settings, keeper, owner
from coordinator.systemd import SystemdNotifier

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
WATCHDOG_S = 4.0
"""In place of the unit's, for the test's time."""


def settings_of(page: str) -> dict[str, str]:
    """The section [Service] of the page's unit."""
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.search(r"^\[Service\]\n(.*?)\n\n\[Install\]", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    lines = [line for line in found[1].splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


class Supervisor:
    """Runs a command as systemd would under Type=notify, WatchdogSec=, Restart= and RestartPreventExitStatus=."""

    def __init__(self, unit: dict[str, str], command: list[str], folder: Path, name: str) -> None:
        assert unit["Type"] == "notify"
        assert int(unit["WatchdogSec"]) == 60
        self.starts, self.watchdogs, self.ready = 0, 0, threading.Event()
        self._unit, self._command, self._folder = unit, command, folder
        self._log = folder / f"{name}.log"
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = str(folder / f"{name}.notify")
        self._link.bind(self._address)
        self._link.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def _run(self) -> None:
        while not self._over.is_set():
            environment = {
                **os.environ,
                "NOTIFY_SOCKET": self._address,
                "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
            }
            with self._log.open("ab") as sink:
                self._process = subprocess.Popen(
                    self._command, cwd=self._folder, env=environment, stdout=sink, stderr=sink
                )
            self.ready.clear()
            self.starts += 1
            code = self._watched()
            again = self._unit["Restart"] == "always" or (self._unit["Restart"] == "on-failure" and code != 0)
            if not again or str(code) == self._unit["RestartPreventExitStatus"]:
                return
            time.sleep(0.1)

    def _watched(self) -> int:
        heard_s = None
        while self._process.poll() is None:
            if self._over.is_set():
                self._process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(15.0)
                self._process.kill()
                return self._process.wait()
            with suppress(TimeoutError):
                told = self._link.recv(4096)
                if told in (b"READY=1", b"WATCHDOG=1"):
                    heard_s = time.monotonic()
                if told == b"READY=1":
                    self.ready.set()
            if heard_s is not None and time.monotonic() - heard_s > WATCHDOG_S:
                self.watchdogs += 1
                self._process.kill()
                heard_s = None
        return self._process.wait()

    def end(self) -> None:
        self._over.set()
        self._thread.join(30.0)
        self._link.close()


@contextmanager
def supervised(unit: dict[str, str], command: list[str], folder: Path, name: str) -> Iterator[Supervisor]:
    found = Supervisor(unit, [sys.executable, "-m", "edge_sdk.cli", *command], folder, name)
    try:
        assert found.ready.wait(60.0), found.log
        yield found
    finally:
        found.end()


def until(condition, what="") -> None:
    end_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_broker_and_desk_come_back_whatever_happens_to_them(tmp_path: Path) -> None:
    unit = settings_of("secure-lab.md")
    assert shlex.split(unit["ExecStart"])[1:3] == ["lab", "broker"]
    lab = tmp_path / "lab"
    owner.make_lab(lab, ["localhost"], free_port(), "127.0.0.1")
    with (
        supervised(unit, ["lab", "broker", "lab"], tmp_path, "broker") as broker,
        supervised(unit, ["lab", "serve", "lab", "--no-broker"], tmp_path, "desk") as desk,
    ):
        until(lambda: "is open" in desk.log, desk.log)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for service in (broker, desk):
                assert service.ready.wait(60.0)
                starts = service.starts
                os.kill(service.pid, number)
                until(lambda service=service, starts=starts: service.starts > starts, number)
        assert (broker.watchdogs >= 1, desk.watchdogs >= 1) == (True, True)
        mosquitto = broker_settings.running_broker(lab)
        assert mosquitto is not None
        os.kill(mosquitto, signal.SIGKILL)
        until(lambda: broker_settings.running_broker(lab) not in (None, mosquitto))
        (claim,) = owner.issue_claims(lab, ["device-01"])
        command = [sys.executable, "-m", "edge_sdk.cli", "enroll", "--claim", str(claim)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr + desk.log + broker.log
    until(lambda: broker_settings.running_broker(lab) is None)


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_a_coordinator_comes_back_and_a_mistake_in_its_file_is_not_tried_again(tmp_path: Path) -> None:
    from coordinator.broker.embedded import EmbeddedBroker

    unit = settings_of("run-for-years.md")
    file = tmp_path / "f.toml"
    file.write_text(
        '[federation]\nname = "alive"\nmethod = "fedproto"\nrounds = "forever"\ndevices = 2\nquorum = 1\nclasses = 4\n'
        "feature_dim = 8\n",
        encoding="utf-8",
    )
    with EmbeddedBroker() as link:
        command = ["coordinator", "f.toml", "--broker", link.url, "--out", "run"]
        with supervised(unit, command, tmp_path, "first") as found:
            for number in (signal.SIGKILL, signal.SIGSTOP):
                assert found.ready.wait(60.0)
                starts = found.starts
                os.kill(found.pid, number)
                until(lambda starts=starts: found.starts > starts)
            assert found.watchdogs == 1
        file.write_text("[federation]\n", encoding="utf-8")
        wrong = Supervisor(unit, [sys.executable, "-m", "edge_sdk.cli", *command], tmp_path, "wrong")
        wrong._thread.join(60.0)
        assert wrong.starts == 1
        wrong.end()


@pytest.mark.broker
@pytest.mark.timeout(120)
def test_a_mosquitto_that_stands_still_is_killed(tmp_path: Path, monkeypatch, capsys) -> None:
    for name, value in {"ANSWER_S": 0.3, "ASK_EVERY_S": 0.1, "POLL_S": 0.1}.items():
        monkeypatch.setattr(keeper, name, value)
    lab = tmp_path / "lab"
    owner.make_lab(lab, ["localhost"], free_port(), "127.0.0.1")
    process = keeper._started(lab)
    try:
        keeper._await_port(lab, process)
        assert keeper._answers(lab)
        os.kill(process.pid, signal.SIGSTOP)
        assert keeper._watched(lab, process, SystemdNotifier({})) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    assert "mosquitto has not answered 3 times in a row" in capsys.readouterr().out
