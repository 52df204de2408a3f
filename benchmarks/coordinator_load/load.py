"""Measures what docs/results/load.md says, and writes that page: many devices on one mosquitto and one coordinator.

python -m benchmarks.coordinator_load.load SECTION...     measure some sections (default: all), then write the page
python -m benchmarks.coordinator_load.load --page         only write the page
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.figures import Found, Page, Table, quantiles
from benchmarks.common.proc import process_status
from benchmarks.coordinator_load.light_fleet import LightFleet
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import to_toml
from edge_sdk.public_set.samples import PublicSet

NAME = "load"
CLASSES = 10
PATIENCE_S = 900.0
CROWD_PATIENCE_S = 3000.0
FILES = 16_384
"""Open files that this process and the broker may have: one for each connection, and some."""


@dataclass(frozen=True)
class Load:
    """What a run under load came to."""

    devices: int
    rounds: int
    upload_bytes: int
    lost: int
    """Uploads that a device sent and that the run did not count."""
    waits_s: list[float]
    """Seconds from the sending of each upload to its receipt."""
    back_s: list[float]
    """Seconds from the broker's return until each device was welcomed again, or empty without a restart."""
    resident_mib: float
    peak_mib: float
    took_s: float
    broker_mib: float
    rounds_s: float
    """From the first upload of the run to the last receipt."""


def measure(  # the arguments of one load
    folder: Path, *, devices: int, rounds: int, rows: int, restart: bool = False, patience_s: float = PATIENCE_S
) -> Load:
    """Run a federation of light devices to its end; restart: kill the broker in the midst of a round, and start it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most) if most > 0 else FILES, most))
    names = [f"d-{number:04d}" for number in range(devices)]
    _write_federation(folder, names, rounds, rows)
    begun_s = time.monotonic()
    with EmbeddedBroker("mosquitto") as broker, _coordinator(folder, broker.url) as coordinator:
        fleet = LightFleet(broker.port, NAME, names, classes=CLASSES, rows=rows)
        fleet.public_sha256 = PublicSet.load(folder / "public.npz").spec.sha256
        with fleet.open():
            back_s: list[float] = []
            if restart:
                half = devices // 2
                fleet.run_until(lambda: len(fleet.done.get((1, 0), ())) >= half, patience_s)
                back_s = _restart(broker, fleet, patience_s)
            fleet.run_until(lambda: len(fleet.done.get((rounds - 1, 0), ())) == devices, patience_s)
            rounds_s = time.monotonic() - fleet.first_upload_s
            status, broker_mib = process_status(coordinator.pid), process_status(broker.pid).resident_mib
            fleet.run_until(lambda: coordinator.poll() is not None, PATIENCE_S)
            upload_bytes = len(fleet.upload(names[0], (0, 0), closing=False))
    told = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    if not told["completed"]:
        raise RuntimeError(f"the run failed: {told['reason']}")
    counted = sum(entry["rounds_done"] for entry in told["per_device"])
    took_s = time.monotonic() - begun_s
    waits_s = fleet.waits_s
    lost = devices * rounds - counted
    own_mib = status.resident_mib, status.peak_mib
    return Load(devices, rounds, upload_bytes, lost, waits_s, back_s, *own_mib, took_s, broker_mib, rounds_s)


def _restart(broker: EmbeddedBroker, fleet: LightFleet, patience_s: float) -> list[float]:
    """Kill the broker, which keeps nothing, and start it again; return when each device was welcomed after that."""
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait()
    broker.stop()
    fleet.run_until(lambda: not any(device.online for device in fleet.devices), patience_s)
    broker.start()
    began_s = time.monotonic()
    fleet.run_until(lambda: all(device.welcomed_s is not None for device in fleet.devices), patience_s)
    return [device.welcomed_s - began_s for device in fleet.devices if device.welcomed_s is not None]


def _write_federation(folder: Path, names: list[str], rounds: int, rows: int) -> None:
    samples = np.random.default_rng(0).integers(0, 256, (rows, 4, 4)).astype(np.uint8)
    np.savez(folder / "public.npz", public=samples)
    tables = {
        "federation": {
            "name": NAME,
            "method": "fedmd",
            "rounds": rounds,
            "devices": len(names),
            "classes": CLASSES,
            "deadline_s": 600.0,
            "retry_s": 30.0,
            "roster": names,
        },
        "method": {"public_batch": rows},
        "public": {"path": "public.npz"},
    }
    (folder / "federation.toml").write_text(to_toml(tables), encoding="utf-8")


@contextmanager
def _coordinator(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "edge_sdk.cli", "coordinator", "federation.toml", "--broker", url, "--out", "run"]
    with (folder / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        )
    try:
        yield process
    except TimeoutError as error:
        said = (folder / "coordinator.log").read_text(encoding="utf-8", errors="replace")[-1000:]
        raise TimeoutError(f"{error}; the coordinator's exit code is {process.poll()}; it said last: {said}") from None
    finally:
        process.kill()
        process.wait()


# -- the page -------------------------------------------------------------------------------------------------------

HEAD = [
    "devices",
    "rounds",
    "upload, B",
    "uploads lost",
    "receipt after, ms: p50",
    "p95",
    "coordinator, MiB",
    "peak",
    "s",
]


def _row(found: Load) -> list[str]:
    waits = quantiles([1e3 * each for each in found.waits_s])
    memory = f"{found.resident_mib:.0f}", f"{found.peak_mib:.0f}"
    uploads = f"{found.devices:,}", str(found.rounds), f"{found.upload_bytes:,}", str(found.lost)
    return [*uploads, *waits, *memory, f"{found.took_s:.0f}"]


def uploads() -> Found:
    """200 devices upload 40 kB in each of 20 rounds."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), devices=200, rounds=20, rows=1000)
    how = (
        "Each device is a separate connection. All of them share one process, which makes the logits, and share the "
        "cores with broker and coordinator. They answer an Assign at once, and all Assigns of a round are sent "
        "together. So a receipt waits for most of the other uploads of its round. It is sent after the upload is "
        "durable."
    )
    return Found([HEAD, _row(found)], [how, _load()])


def reconnect() -> Found:
    """1,000 devices lose the broker in the midst of a round, and come back all at once."""
    return _come_back(devices=1000, rows=100)


def return_of_crowd() -> Found:
    """10,000 devices lose the broker in the midst of a round, and come back all at once."""
    return _come_back(devices=10_000, rows=25, patience_s=CROWD_PATIENCE_S)


def _come_back(*, devices: int, rows: int, patience_s: float = PATIENCE_S) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), devices=devices, rounds=4, rows=rows, restart=True, patience_s=patience_s)
    back = quantiles(found.back_s)
    table: Table = [
        [*HEAD, "welcomed again after, s: p50", "p95", "last"],
        [*_row(found), *back, f"{max(found.back_s):.1f}"],
    ]
    how = (
        "mosquitto, which stores nothing, is killed with SIGKILL when half of the uploads of the second round have "
        "their receipt, and restarted when all devices have noticed. They reconnect without any pause, all together; "
        "real devices first wait a random time. Each says hello, and sends uploads without a receipt again."
    )
    return Found(table, [how, _load()])


def crowd() -> Found:
    """10,000 devices upload 1 kB in each of 20 rounds."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), devices=10_000, rounds=20, rows=25, patience_s=CROWD_PATIENCE_S)
    table: Table = [
        [*HEAD, "s a round", "broker, MiB"],
        [*_row(found), f"{found.rounds_s / found.rounds:.1f}", f"{found.broker_mib:.0f}"],
    ]
    how = (
        "With 10,000 connections in one process: all Assigns of a round are sent together, at QoS 0, and again after "
        "30 s to devices that did not answer. The seconds a round count from the first upload to the last receipt."
    )
    return Found(table, [how, _load()])


def _load() -> str:
    one, five, _ = os.getloadavg()
    return (
        f"Load of the machine when this section ended, our own processes included: {one:.1f} ({five:.1f} over 5 min)."
    )


SECTIONS = {
    "uploads": ("200 devices, 40 kB each, 20 rounds", uploads),
    "reconnect": ("1,000 devices come back at once", reconnect),
    "crowd": ("10,000 devices, 1 kB each, 20 rounds", crowd),
    "return_of_crowd": ("10,000 devices come back at once", return_of_crowd),
}

if __name__ == "__main__":
    Page("load", "Load: measured", SECTIONS, "benchmarks.coordinator_load.load").main(__doc__ or "")
