"""Measures what docs/results/first-light.md says, and writes that page: no figure in it is typed by hand.

    python -m benchmarks.reliability.first_light SECTION...   measure some sections (default: all), then write the page

Each section's figures are kept in docs/results/first-light.json, with the command, the versions and the date.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import edge_sim
from benchmarks.common import stub
from benchmarks.common.figures import ROOT, Page, Table, quantiles
from benchmarks.reliability import killing
from coordinator.config import load_toml
from coordinator.ledger import Ledger
from coordinator.record.result import Result
from coordinator.report.summary import summary, without_times
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames import storage
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.fleet.fleet import build_fleet

DEMO = ROOT / "edge_sim" / "demo.toml"
SEEDS = (0, 1, 2)
ROUNDS = 100

Tables = dict[str, Any]


# -- the sections ---------------------------------------------------------------------------------------------------


def accuracy() -> Table:
    """Compare the devices alone, FedMD and FedAL over three seeds."""
    found: dict[str, list[float]] = {"alone": [], "fedmd": [], "fedal": []}
    worst: dict[str, list[float]] = {"fedmd": [], "fedal": []}
    for seed in SEEDS:
        for method in ("fedmd", "fedal"):
            result = edge_sim.run(_demo(method=method, rounds=ROUNDS, seed=seed, standalone=method == "fedal"))
            told = summary(result)["accuracy"]
            found[method].append(told["mean"])
            worst[method].append(told["min"])
            if "standalone_mean" in told:
                found["alone"].append(told["standalone_mean"])
    rows = [["", "mean over devices and seeds", *(f"seed {seed}" for seed in SEEDS), "worst device"]]
    for name, values in found.items():
        low = f"{min(worst[name]):.1%}" if name in worst else ""
        rows.append([name, _mean_sd(values), *(f"{value:.1%}" for value in values), low])
    return rows


def repeat() -> Table:
    """Run the same seed twice."""
    first, second = (without_times(summary(edge_sim.run(_demo(rounds=20)))) for _ in range(2))
    return [["summary.json but for times", "equal" if first == second else "DIFFERENT"]]


def transports() -> Table:
    """Run the same federation over memory and over the embedded broker."""
    rows = [["transport", "mean accuracy", "accuracies equal to memory's", "training and exchange"]]
    plain = _accuracies(memory := edge_sim.run(_demo(rounds=20)))
    rows.append([memory.transport, f"{statistics.fmean(plain.values()):.2%}", "", _seconds(memory)])
    for kind in ("amqtt", "mosquitto"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = edge_sim.run(_demo(rounds=20), broker=f"embedded:{kind}", out=Path(folder) / "run")
            except UsageError as missing:
                rows.append([kind, "", str(missing).splitlines()[0], ""])
                continue
            mean = f"{statistics.fmean(_accuracies(result).values()):.2%}"
            rows.append([result.transport, mean, "yes" if _accuracies(result) == plain else "NO", _seconds(result)])
    return rows


def faults() -> Table:
    """Compare 200 seeds of a 6-device run with lost, doubled and reordered frames with the clean run."""
    begun_s = time.perf_counter()
    rows = [
        ["method", "seeds", "aggregates and models bit-equal to the clean run", "frames lost or doubled", "seconds"]
    ]
    for method in ("fedmd", "fedal"):
        clean, _ = _outcome(method, Faults(), 0)
        equal = 0
        trouble = 0
        bad = Faults(drop=0.2, duplicate=0.2, delay=0.5, delay_s=3.0)
        for seed in range(200):
            state, counted = _outcome(method, bad, seed)
            equal += state == clean
            trouble += counted
        rows.append([method, "200", f"{equal} of 200", str(trouble), f"{time.perf_counter() - begun_s:.0f}"])
        begun_s = time.perf_counter()
    return rows


def mutations() -> Table:
    """Decode 100,000 mutated frames."""
    begun_s = time.perf_counter()
    tests = "tests/protocol/test_mutations.py"
    done = subprocess.run(  # our own tests
        [sys.executable, "-m", "pytest", "-q", tests, "--timeout", "900"],
        cwd=ROOT,
        env={**os.environ, "EDGE_MUTATIONS": "100000"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = "none escaped" if done.returncode == 0 else f"FAILED: {done.stdout[-200:]}"
    return [["frames", "verdict", "seconds"], ["100,000", verdict, f"{time.perf_counter() - begun_s:.0f}"]]


def kills() -> Table:
    """Kill devices and the coordinator with SIGKILL, five times each in one run over the embedded broker."""
    rows = [["killed", "kills", "run", "accuracies equal to the run without kills", "seconds"]]
    with tempfile.TemporaryDirectory() as folder:
        killing.write_app(Path(folder))
        calm = killing.run(Path(folder), "amqtt", victim="", kills=0)
        for victim in ("device", "coordinator"):
            found = killing.run(Path(folder), "amqtt", victim, kills=5)
            same = "yes" if found.accuracies == calm.accuracies else "NO"
            rows.append([victim, str(found.kills), "completed", same, f"{found.seconds:.0f}"])
    return rows


def latency() -> Table:
    """Time an empty round and a FedAL exchange with 10 devices over the embedded broker."""
    rows = [["", "p50 ms", "p95 ms", "goal p50 ms"]]
    for kind in ("amqtt", "mosquitto"):
        for label, method, rounds, per, goal in (
            ("empty round", "local", 200, 1, "50"),
            ("FedAL exchange", "fedal", 60, 6, "15"),
        ):
            try:
                broker, waits = stub.waits_ms(kind, method, devices=10, rounds=rounds)
            except UsageError:  # not installed
                continue
            rows.append([f"{label}, {broker}", *quantiles([wait / per for wait in waits]), goal])
    return [*rows, ["fsync of this disk (4 kB commit)", *quantiles(_fsyncs()), ""]]


def install() -> Table:
    """Install a wheel in a clean environment; report the packages, their size and the time."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        _call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, str(ROOT))
        shutil.rmtree(ROOT / "build", ignore_errors=True)
        (wheel,) = Path(folder).glob("*.whl")
        _call(sys.executable, "-m", "venv", str(python.parents[1]))
        _call(str(python), "-m", "pip", "install", "-q", str(wheel))
        listed = json.loads(_call(str(python), "-m", "pip", "list", "--format", "json"))
        packages = [f"{row['name']} {row['version']}" for row in listed if row["name"] not in ("pip", "setuptools")]
        probe = (
            "import re, time; t = time.perf_counter(); "
            "from edge_sdk import Agent, LocalData, NumpyModel, PublicSet; import edge_sdk.transport.mqtt.transport; "
            "s = time.perf_counter() - t; status = open('/proc/self/status').read(); "
            "print(s, int(re.search(r'VmRSS:\\s+(\\d+)', status)[1]) / 1024)"
        )
        runs = [tuple(map(float, _call(str(python), "-c", probe).split())) for _ in range(7)]
    seconds, mebibytes = (statistics.median(run[i] for run in runs) for i in range(2))
    return [
        ["", "measured", "goal"],
        ["packages", ", ".join(packages), "numpy, msgpack, paho-mqtt"],
        ["import of agent, model and MQTT, s (median of 7)", f"{seconds:.3f}", "0.25"],
        ["resident memory after it, MiB", f"{mebibytes:.1f}", "45"],
    ]


SECTIONS: dict[str, tuple[str, Callable[[], Table]]] = {
    "accuracy": (f"Accuracy on all ten digits, 3 of 10 classes on each device, {ROUNDS} rounds, 3 seeds", accuracy),
    "repeat": ("The same seed twice", repeat),
    "transports": ("Memory and embedded broker, 20 rounds of FedAL", transports),
    "faults": ("6 devices, 20 % of frames lost, 20 % doubled, 50 % delayed by up to 3 s and so reordered", faults),
    "mutations": ("Mutated frames", mutations),
    "kills": ("kill -9 over the embedded broker, 3 devices, FedMD", kills),
    "latency": ("Round trips, 10 devices in processes on one machine", latency),
    "install": ("The base install in a clean environment", install),
}


# -- pieces ---------------------------------------------------------------------------------------------------------


def _demo(*, rounds: int, method: str = "fedal", seed: int = 0, standalone: bool = False) -> settings.Config:
    overrides = [f"federation.rounds={rounds}", f"federation.method={method}", f"federation.seed={seed}"]
    overrides.append(f"run.standalone={str(standalone).lower()}")
    return settings.parse(load_toml(DEMO, overrides), DEMO)


def _outcome(method: str, bad: Faults, seed: int) -> tuple[tuple[bytes, ...], int]:
    """Return the final bytes of the coordinator's state and of every model, and the number of faulty frames."""
    tables: Tables = {
        "federation": {"name": "faults", "method": method, "rounds": 4, "devices": 6, "deadline_s": 10_000.0},
        "method": {"tau": 3} if method == "fedal" else {},
        "data": {"public": 300},
        "fleet": [{"count": 6, "model": "softmax"}],
    }
    config = settings.parse(tables, Path("faults.toml"))
    fleet = VirtualFleet(build_fleet(config), ledger=Ledger(None), faults=bad, faults_seed=seed)
    fleet.run()
    updates = fleet.server.record.updates
    models = tuple(device.agent.bench.model.state_bytes() for device in fleet.devices)
    return (storage.serialise(fleet.server.method_state), *models), updates["duplicate"] + updates["stale"]


def _fsyncs() -> list[float]:
    """Return the milliseconds of durable commits of 4 kB."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        db = sqlite3.connect(Path(folder) / "x.db", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE t (b BLOB)")
        waits = []
        for _ in range(300):
            begun_s = time.perf_counter()
            db.execute("INSERT INTO t VALUES (?)", (bytes(4096),))
            waits.append((time.perf_counter() - begun_s) * 1e3)
        db.close()
    return sorted(waits)


def _accuracies(result: Result) -> dict[str, float | None]:
    return {device.id: device.accuracy for device in result.devices}


def _seconds(result: Result) -> str:
    return f"{sum(round_.wall_s for round_ in result.history) or result.time['wall_s']:.1f} s"


def _mean_sd(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1%} ± {statistics.stdev(values) * 100:.1f}"


def _call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


if __name__ == "__main__":
    Page("first-light", "First light: measured", SECTIONS, "benchmarks.reliability.first_light").main(__doc__ or "")
