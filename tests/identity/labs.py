"""A lab for tests: its folder, a mosquitto with its settings, and devices that are enrolled without the network."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import fleets
import pytest

from coordinator.lab import owner
from coordinator.lab.desk import EnrolmentDesk
from edge_sdk.cli import main
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    EnrolmentRequest,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.crypto_keys import new_exchange_key, new_request, new_signing_key, new_tls_key
from edge_sdk.identity.folder import ABOUT, AUTHORITY, CERTIFICATE, SEALING, SIGNING, TLS_KEY, IdentityCard
from edge_sdk.protocol.entry_guard import undigested_json
from edge_sdk.transport.memory.hub import Faults
from edge_sdk.transport.mqtt.tls import TlsFiles

PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def made(folder: Path, port: int = 8883, *, encrypts: bool = False) -> Path:
    """A lab at localhost."""
    lab = folder / "lab"
    owner.make_lab(lab, ["localhost"], port, "127.0.0.1", encrypts=encrypts)
    owner.serve_federation(lab, "f")
    return lab


def enrolled(lab: Path, *devices: str) -> list[Path]:
    """Identity folders of devices, beside the lab."""
    desk = EnrolmentDesk(lab)
    folders = []
    for path in owner.issue_claims(lab, devices):
        claim, key, tls_key = read_claim(path), new_signing_key(), new_tls_key()
        exchange_key = new_exchange_key() if claim.sealing else None
        sealing = exchange_key.public if exchange_key else b""
        wanted = EnrolmentRequest(key.public, new_request(tls_key, claim.device), sealing)
        request = pack_enrolment_request(claim.secret, wanted)
        found = desk.answer(f"{CLAIMS_ROOT}/{claim.user}", request)
        assert found is not None
        folder = lab.parent / claim.device
        key_files.write_whole(folder / SIGNING, key.to_pem(), key_files.PRIVATE)
        key_files.write_whole(folder / TLS_KEY, tls_key, key_files.PRIVATE)
        key_files.write_whole(folder / CERTIFICATE, unpack_enrolment_answer(claim.secret, found[1]))
        key_files.write_whole(folder / AUTHORITY, claim.authority.encode())
        if exchange_key:
            key_files.write_whole(folder / SEALING, exchange_key.to_pem(), key_files.PRIVATE)
        about = IdentityCard(
            role="device",
            name=claim.device,
            broker=claim.broker,
            coordinator=claim.coordinator,
            sealing=claim.sealing,
            own=key.public.hex(),
            own_sealing=sealing.hex(),
        )
        key_files.write_whole(folder / ABOUT, about.to_json())
        folders.append(folder)
    return folders


def change_card(folder: Path, **changes: str) -> None:
    """Write another identity.json, whole and well-formed."""
    about = IdentityCard(**undigested_json((folder / ABOUT).read_bytes()))
    key_files.write_whole(folder / ABOUT, dataclasses.replace(about, **changes).to_json())


def files_of(folder: Path) -> TlsFiles:
    """The certificates in an identity folder."""
    return TlsFiles(folder / AUTHORITY, folder / CERTIFICATE, folder / TLS_KEY)


def edge_sdk(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command in a folder, within this process; what it printed."""
    said, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            ended = main(arguments)
    finally:
        os.chdir(before)
    assert ended == code, said.getvalue()
    return said.getvalue()


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[Path]:
    """Run `edge-sdk lab serve ...` in a folder while the `with` block runs; the file with what it prints."""
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    log = folder / "serve.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk.cli", *command], cwd=folder, stdout=sink, stderr=sink, env={**os.environ}
        )
    try:
        end_s = time.monotonic() + PATIENCE_S
        while b"is open" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.02)
        yield log
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        process.kill()


def parent(pid: int) -> int:
    """The process id of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def desk_of(lab: Path) -> int:
    """The process id of `edge-sdk lab serve`, whose child keeps the broker running."""
    return parent(parent(int((lab / "mosquitto.pid").read_text())))


def until(condition: object, what: Sequence[object] = ()) -> None:
    """Wait for a condition."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def models(run: fleets.Run) -> dict[str, bytes]:
    """The states of all models of a run, by device."""
    return {each.device.kit.id: each.participant.context.bench.model.state_bytes() for each in run.devices}


def run_with_faults(pictures: Path, secured: Path) -> fleets.Run:
    """A finished run of a lab's fleet with lost, repeated and late frames and two power cuts."""
    faults = Faults(drop=0.05, duplicate=0.2, delay=0.2)
    run = fleets.Run(fleets.built(pictures), secured=secured, faults=faults, seed=3)
    run.power_cut("coordinator", 3.0, 2.0)
    run.power_cut(run.fleet.federation.roster[0], 5.0, 2.0)
    return run.finished()
