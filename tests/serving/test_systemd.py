"""The coordinator and systemd's watchdog."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.deploy import SystemdObserver
from coordinator.record.run_record import RunRecord
from coordinator.systemd import SystemdNotifier


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(str(tmp_path / "notify"))
        link.setblocking(False)  # noqa: FBT003  # its only parameter
        yield link


def all_of(link: socket.socket) -> list[str]:
    found = list[str]()
    with suppress(BlockingIOError):
        while True:
            found.append(link.recv(1000).decode())
    return found


def test_the_watchdog_hears_the_loop_twice_in_its_interval(tmp_path: Path, told: socket.socket) -> None:
    now_s = 0.0
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000000"}
    observer = SystemdObserver(SystemdNotifier(environment, clock=lambda: now_s))
    observer.begun(cast("Any", None))
    for now_s in (0.0, 5.0, 10.0, 12.0, 20.0):  # noqa: B007  # the clock reads it
        observer.waited(RunRecord())
    observer.noted("round 3 is skipped for now")
    assert all_of(told) == ["READY=1", *3 * ["WATCHDOG=1"], "STATUS=round 3 is skipped for now"]


def test_without_systemd_nothing_is_sent(told: socket.socket) -> None:
    observer = SystemdObserver(SystemdNotifier({}))
    observer.begun(cast("Any", None))
    observer.waited(RunRecord())
    assert all_of(told) == []


def test_a_socket_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    SystemdObserver(SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "none")})).noted("a line")
