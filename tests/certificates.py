"""Certificates for tests, and a mosquitto that uses them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme

from coordinator.broker.embedded import MOSQUITTO_CONF
from edge_sdk.transport.mqtt.tls import TlsFiles

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that writes its files into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._ca = folder, trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, *hosts: str, name: str | None = None, valid_from: int = -1, valid_until: int = 365) -> Pair:
        """A certificate for hosts, or for a device of a name; its dates in days from now."""
        leaf = self._ca.issue_cert(
            *hosts, common_name=name, not_before=NOW + valid_from * DAY, not_after=NOW + valid_until * DAY
        )
        stem = f"{len(list(self._folder.iterdir())):03}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        leaf.cert_chain_pems[0].write_to_path(str(pair.certificate))
        leaf.private_key_pem.write_to_path(str(pair.key))
        return pair

    def files(self, pair: Pair | None = None) -> TlsFiles:
        """What a client of this authority is given."""
        return TlsFiles(self.ca) if pair is None else TlsFiles(self.ca, pair.certificate, pair.key)


@contextmanager
def mosquitto(folder: Path, settings: str) -> Iterator[int]:
    """A mosquitto on a free port of loopback, with the recommended settings and these; its port."""
    program = shutil.which("mosquitto")
    if program is None:
        pytest.skip("mosquitto is not on PATH")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = folder / f"mosquitto-{port}.conf"
    conf.write_text(f"{MOSQUITTO_CONF.read_text()}\nlistener {port} 127.0.0.1\nuser root\n{settings}\n")
    with subprocess.Popen([program, "-c", str(conf)], stderr=subprocess.DEVNULL) as process:
        try:
            _await(port, process)
            yield port
        finally:
            process.terminate()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + 10.0
    while process.poll() is None and time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.01)
    raise AssertionError(f"mosquitto did not come up, exit code {process.poll()}")
