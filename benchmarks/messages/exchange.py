"""Measures what docs/results/exchange.md says, and writes that page: what one exchange costs over a broker.

python -m benchmarks.messages.exchange SECTION...     measure some sections (default: all), then write the page
python -m benchmarks.messages.exchange --page         only write the page
"""

from __future__ import annotations

import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import edge_sim
from benchmarks.common.figures import Found, Page, Table, quantiles
from benchmarks.common.proc import children, cpu_s
from coordinator.config import to_toml
from edge_sim.over_broker import processes

EXCHANGES = 6
"""Exchanges in a round of FedAL with its default of five iterations."""
WARM_UP = 5
"""The first rounds, which are left out."""
PROFILED = 60
"""Rounds of the run that is profiled."""
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Cost:
    """What the exchanges of a run cost."""

    broker: str
    waits_ms: list[float]
    """The time of an exchange, one value for each round."""
    cpu_ms: dict[str, float]
    """Processor time of an exchange, by `broker`, `coordinator` and `devices` (all of them together)."""


def measure(devices: int, rounds: int, *, kind: str = "mosquitto", method: str = "fedal") -> Cost:
    """Run a federation of devices that train nothing, each a process of its own."""
    tables = _tables(devices, rounds, method)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "fleet.toml").write_text(to_toml(tables), encoding="utf-8")
        command = [sys.executable, "-m", "edge_sdk.cli", "simulate", "fleet.toml"]
        command += ["--broker", f"embedded:{kind}", "--out", "run"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            first, last = (_cpu_at(process, folder, at) for at in (WARM_UP, rounds - 1))
            process.wait(PATIENCE_S)
        finally:
            process.terminate()
            process.wait()
        times_s = [entry["time_s"] for entry in _rounds(folder)]
        told = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    (at_first, before), (at_last, after) = first, last
    exchanges = (at_last - at_first) * EXCHANGES
    spent = {part: (after[part] - before[part]) / exchanges * 1e3 for part in ("broker", "coordinator", "devices")}
    waits_s = [(then - now) / EXCHANGES for now, then in zip(times_s[WARM_UP:], times_s[WARM_UP + 1 :], strict=False)]
    return Cost(told["transport"], [wait_s * 1e3 for wait_s in waits_s], spent)


def _tables(devices: int, rounds: int, method: str = "fedal") -> dict[str, Any]:
    return {
        "federation": {"name": "exchange", "method": method, "rounds": rounds, "devices": devices},
        "train": {"local_steps": 0, "evaluate_every": 10**6},
        "partition": {"kind": "iid"},
        "run": {"standalone": False, "processes": 1},
        "fleet": [{"count": devices, "model": "softmax"}],
    }


def _cpu_at(process: subprocess.Popen[bytes], folder: Path, round_: int) -> tuple[int, Counter[str]]:
    """Wait for a round; return the number of rounds that are done, and the processor time of each part so far in s."""
    end_s = time.monotonic() + PATIENCE_S
    while (done := len(_rounds(folder))) < round_:
        if process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError((folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:])
        time.sleep(0.02)
    spent: Counter[str] = Counter({"coordinator": cpu_s(process.pid)})
    for child, words in children(process.pid).items():
        spent["devices" if "edge_sim.over_broker.host" in words else "broker"] += cpu_s(child)
    return done, spent


def _rounds(folder: Path) -> list[dict[str, float]]:
    log = folder / "run" / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if '"event": "round"' in line]


# -- the sections ---------------------------------------------------------------------------------------------------


def latency() -> Found:
    """Time FedAL exchanges with one device and with ten, and add up what all processes spend on one."""
    goals = {1: ("15", ""), 10: ("30", "35")}
    rows: Table = [
        ["devices", "p50 ms", "p95 ms", "goal", "processor ms", "goal", "broker", "coordinator", "each device"]
    ]
    for devices in (1, 10):
        found = [measure(devices, 80) for _ in range(3)]
        waits = [wait for each in found for wait in each.waits_ms]
        spent = {part: statistics.median(each.cpu_ms[part] for each in found) for part in found[0].cpu_ms}
        total = f"{sum(spent.values()):.1f}"
        parts = [f"{spent['broker']:.2f}", f"{spent['coordinator']:.2f}", f"{spent['devices'] / devices:.2f}"]
        wall_goal, cpu_goal = goals[devices]
        rows.append([str(devices), *quantiles(waits), wall_goal, total, cpu_goal, *parts])
        print(rows[-1], flush=True)
    how = (
        f"FedAL over {found[0].broker} on loopback, softmax regression on digits, no local steps: six exchanges a "
        "round; 80 rounds, three runs. Each device and the coordinator is a process. A time is that of a round divided "
        "by its six exchanges, including checkpoint and log. With one device nothing overlaps: Assign, computing and "
        "the device's commit, upload, the coordinator's commit, receipt and reduction. Processor time is that of all "
        "processes, on all cores."
    )
    return Found(rows, [how, f"Load of the machine when this section ended: {os.getloadavg()[0]:.1f}."])


PARTS = {
    "sqlite3": "SQLite",
    "fsync": "SQLite",
    "paho": "MQTT client",
    "edge_sdk/transport": "transport",
    "edge_sdk/protocol": "codec and checks",
    "msgpack": "codec and checks",
    "numpy": "numpy",
    "edge_sdk/device": "session, exchange, store",
    "edge_sdk/agent": "session, exchange, store",
    "edge_sdk/serving": "the served model's files",
    "edge_sdk/at_rest": "digests",
    "_hashlib": "digests",
    "edge_sdk/objectives": "method, objective, model",
    "edge_sdk/methods": "method, objective, model",
    "edge_sdk/models": "method, objective, model",
    "socket": "socket and waiting",
    "epoll": "socket and waiting",
    "select": "socket and waiting",
    "_thread": "socket and waiting",
    "threading.py": "socket and waiting",
    "queue": "socket and waiting",
}
"""The part that a function belongs to, by the first of these that is in its name or file."""


def profile() -> Found:
    """Add up where a device spends its processor time, by part."""
    with tempfile.TemporaryDirectory() as temporary:
        name = Path(temporary) / "profile"

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            options["env"] = {**options["env"], "PROFILE": str(name)}
            program = str(Path(__file__).with_name("profiled_host.py"))
            return subprocess.Popen([command[0], program, *command[3:]], **options)

        with mock.patch.object(processes, "start_process", start):
            edge_sim.run(_tables(1, PROFILED), broker="embedded:mosquitto", out=Path(temporary) / "run")
        spent = {file.suffix: pstats.Stats(str(file)) for file in Path(temporary).glob("profile.*")}
    rows: Table = [["part", "agent's thread", "MQTT thread"]]
    shares = [_shares(spent[kind]) for kind in (".agent-device-00", ".mqtt-exchange-device-00")]
    for part in sorted(set().union(*shares), key=lambda part: -sum(share[part] for share in shares)):
        rows.append([part, *(f"{share[part]:.0%}" for share in shares)])
    how = (
        f"One device, {PROFILED} rounds over mosquitto; functions by their file. A profile overestimates Python "
        "calls, and underestimates C calls."
    )
    return Found(rows, [how])


def _shares(stats: Any) -> Counter[str]:
    """Return the share of each part in the processor time of a thread."""
    spent: Counter[str] = Counter()
    for (file, _, function), (_, _, own_s, _, _) in stats.stats.items():
        where = f"{file} {function}"
        spent[next((part for word, part in PARTS.items() if word in where), "other Python")] += own_s
    return Counter({part: own_s / spent.total() for part, own_s in spent.items()})


SECTIONS: dict[str, tuple[str, Callable[[], Table | Found]]] = {
    "latency": ("A FedAL exchange", latency),
    "profile": ("Where a device's processor time goes", profile),
}


if __name__ == "__main__":
    Page("exchange", "An exchange over a broker: measured", SECTIONS, "benchmarks.messages.exchange").main(
        __doc__ or ""
    )
