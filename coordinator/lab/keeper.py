"""Keeps a lab's mosquitto running: `edge-sdk lab broker`, a process that outlives the desk."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import cast

from coordinator.lab import broker_settings, owner
from coordinator.lab.broker_settings import CONF, DESK
from coordinator.systemd import SystemdNotifier
from edge_sdk.errors import TransportError, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import AUTHORITY, CERTIFICATE, TLS_KEY

START_S, STOP_S = 20.0, 3.0
POLL_S = 0.5
AGAIN_FIRST_S, AGAIN_MOST_S = 0.1, 30.0
"""Mosquitto is restarted after 0.1, 0.2, 0.4 ... 30 s."""
ANSWER_S, ASK_EVERY_S, MOST_SILENT = 5.0, 20.0, 3
"""Every 20 s mosquitto must answer a handshake within 5 s; after three failures in a row it is killed and restarted."""
CALM_S = 60.0
"""After it ran this long, the pauses start again at the shortest."""


def keep_running(lab: Path) -> None:
    """Run mosquitto with the lab's settings until KeyboardInterrupt, and restart it whenever it ends.

    One that already runs is watched, and left running at the end.  Raises UsageError if another process keeps the
    broker, or mosquitto is not installed; TransportError if it does not start the first time.
    """
    pause_s, notifier = AGAIN_FIRST_S, SystemdNotifier()
    with _alone(lab):
        _await_end(lab, notifier)
        began_s, process = time.monotonic(), _started(lab)
        try:
            _await_port(lab, process)
            notifier.ready()
            while True:
                code = _watched(lab, process, notifier)
                pause_s = AGAIN_FIRST_S if time.monotonic() - began_s > CALM_S else min(2 * pause_s, AGAIN_MOST_S)
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                tell_owner(f"mosquitto {how}; restarting it in {pause_s:g} s; devices reconnect automatically")
                notifier.alive()
                time.sleep(pause_s)
                began_s, process = time.monotonic(), _started(lab)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def is_kept(lab: Path) -> bool:
    """Whether a process keeps the lab's broker running."""
    try:
        with _alone(lab):
            return False
    except UsageError:
        return True


class Keeper:
    """The process `edge-sdk lab broker` that a desk has started, unless one runs already."""

    def __init__(self, lab: Path) -> None:
        """Start it, and wait until the broker accepts connections.  Raises TransportError if it does not."""
        self._lab, self._process = lab, cast("subprocess.Popen[bytes] | None", None)
        running = broker_settings.running_broker(lab)
        if running is not None:
            tell_owner(f"mosquitto already runs with {lab / CONF} (process {running}) and keeps running when this ends")
        else:
            _program()
        try:
            self.watch()
            if self._process is not None and running is None:
                _await_port(lab, self._process)
        except BaseException:
            self.end()
            raise

    def watch(self) -> None:
        """Restart the process if it has ended and no other one keeps the broker."""
        if (self._process is None or self._process.poll() is not None) and not is_kept(self._lab):
            command = [sys.executable, "-m", "edge_sdk.cli", "lab", "broker", str(self._lab)]
            environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
            # its own session: a signal that ends the desk must not end the broker; and systemd hears the desk alone
            self._process = subprocess.Popen(command, start_new_session=True, env=environment)  # noqa: S603  # ourselves

    def end(self) -> None:
        """End the process and with it the broker that it started."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2 * STOP_S)


def _alone(lab: Path) -> AbstractContextManager[None]:
    return key_files.used_alone(lab, "broker", f"{lab}: another process keeps this lab's broker running")


def _await_end(lab: Path, notifier: SystemdNotifier) -> None:
    """Wait while a mosquitto runs that another keeper started."""
    if broker_settings.running_broker(lab) is not None:
        notifier.ready()
    while broker_settings.running_broker(lab) is not None:
        notifier.alive()
        time.sleep(POLL_S)


def _watched(lab: Path, process: subprocess.Popen[bytes], notifier: SystemdNotifier) -> int:
    """Wait for the end of mosquitto, and kill it if it no longer answers; returns its exit code."""
    silent, ask_s = 0, time.monotonic() + ASK_EVERY_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        notifier.alive()
        if time.monotonic() < ask_s:
            continue
        silent = 0 if _answers(lab) else silent + 1
        ask_s = time.monotonic() + (ASK_EVERY_S if not silent else 0.0)
        if silent >= MOST_SILENT:
            tell_owner(f"mosquitto has not answered {silent} times in a row, within {ANSWER_S:g} s each; it is killed")
            process.kill()


def _answers(lab: Path) -> bool:
    """Whether the broker answers a handshake; the desk's certificate keeps it from logging a fault."""
    port = int(owner.broker_of(lab).rpartition(":")[2])
    try:
        context = ssl.create_default_context(cafile=str(lab / AUTHORITY))
        context.load_cert_chain(lab / DESK / CERTIFICATE, lab / DESK / TLS_KEY)
        with (
            socket.create_connection(("localhost", port), timeout=ANSWER_S) as link,
            context.wrap_socket(link, server_hostname="localhost"),
        ):
            return True
    except TimeoutError:
        return False
    except (OSError, ssl.SSLError):
        return True  # it refused, so it lives; a broker that ended is seen by its process


def _program() -> str:
    program = shutil.which("mosquitto")
    if program is None:
        raise UsageError(f"mosquitto is not on PATH: install {broker_settings.ADVISED}, or give --no-broker")
    return program


def _started(lab: Path) -> subprocess.Popen[bytes]:
    owner.finish_renewal(lab)
    return subprocess.Popen([_program(), "-c", str(lab / CONF)], start_new_session=True)  # noqa: S603  # from PATH


def _await_port(lab: Path, process: subprocess.Popen[bytes]) -> None:
    port = int(owner.broker_of(lab).rpartition(":")[2])
    end_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise TransportError(f"mosquitto did not start at port {port}; see what it printed")


def tell_owner(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
