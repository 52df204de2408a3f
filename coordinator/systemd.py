"""Tells systemd that a service is ready and alive, where its unit asks for it (Type=notify, WatchdogSec=)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress


class SystemdNotifier:
    """Sends READY=1, WATCHDOG=1 from the service's own loop, and STATUS lines (sd_notify(3)).

    A loop that stands still sends nothing, so that systemd restarts the service.
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

    def ready(self) -> None:
        """Say that the service serves."""
        self._send("READY=1")

    def alive(self) -> None:
        """Say that the loop turns, twice in each interval of the watchdog."""
        if self._every_s is not None and self._clock() >= self._next_s:
            self._next_s = self._clock() + self._every_s
            self._send("WATCHDOG=1")

    def status(self, line: str) -> None:
        """Show the line in `systemctl status`."""
        self._send(f"STATUS={line}")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
                link.sendto(text.encode(), self._address)
