"""Tells systemd that the coordinator is ready and alive, where a unit asks for it (Type=notify, WatchdogSec=)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from coordinator.record.observer import RunObserver, RunView
from coordinator.record.run_record import RunRecord


class SystemdObserver(RunObserver):
    """Sends READY=1 at the start, WATCHDOG=1 from the coordinator's own loop, and its last line as STATUS.

    A loop that stands still sends nothing, so that systemd restarts the coordinator (sd_notify(3)).
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """environment: by default that of the process; without NOTIFY_SOCKET nothing is sent."""
        found = os.environ if environment is None else environment
        self._address = found.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        wanted_us = found.get("WATCHDOG_USEC", "")
        self._every_s = int(wanted_us) / 2e6 if wanted_us.isdecimal() else None
        self._clock, self._next_s = clock, clock()

    def begun(self, view: RunView) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the coordinator serves."""
        self._send("READY=1")

    def waited(self, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Say that the loop turns, twice in each interval of the watchdog."""
        if self._every_s is not None and self._clock() >= self._next_s:
            self._next_s = self._clock() + self._every_s
            self._send("WATCHDOG=1")

    def noted(self, message: str) -> None:
        """Show the line in `systemctl status`."""
        self._send(f"STATUS={message}")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.sendto(text.encode(), self._address)
