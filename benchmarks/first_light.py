"""Measures what docs/results/first-light.md says, and writes that page: no figure in it is typed by hand.

    python benchmarks/first_light.py SECTION...     measure some sections (default: all), then write the page

Each section's figures are kept in docs/results/first-light.json, with the command, the versions and the date.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import edge_sim
from coordinator.broker import EmbeddedBroker
from coordinator.config import load_toml
from coordinator.ledger import Ledger
from coordinator.outcome import versions
from coordinator.report.result import Result, summary, without_times
from edge_sdk.protocol import keep
from edge_sdk.transport.memory import Faults
from edge_sim import config as configs
from edge_sim import fleet as fleets
from edge_sim.virtual import VirtualFleet

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "edge_sim" / "demo.toml"
FIGURES = ROOT / "docs" / "results" / "first-light.json"
PAGE = FIGURES.with_suffix(".md")
SEEDS = (0, 1, 2)
ROUNDS = 100

Table = list[list[str]]
Tables = dict[str, Any]


def main() -> None:
    """Measure, keep, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="*", choices=[[], *SECTIONS], default=[])
    wanted = parser.parse_args().section or list(SECTIONS)
    known: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in wanted:
        title, measure = SECTIONS[name]
        print(f"measuring: {title}", flush=True)
        table = measure()
        known[name] = {
            "title": title,
            "table": table,
            "command": f"python benchmarks/first_light.py {name}",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "versions": versions(),
            "cores": os.cpu_count(),
        }
        FIGURES.parent.mkdir(parents=True, exist_ok=True)
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")
        PAGE.write_text(page(known))
        print("\n".join(_markdown(table)), flush=True)


# -- the sections ---------------------------------------------------------------------------------------------------


def accuracy() -> Table:
    """Alone, FedMD and FedAL over three seeds."""
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
    """The same seed twice."""
    first, second = (without_times(summary(edge_sim.run(_demo(rounds=20)))) for _ in range(2))
    return [["summary.json but for times", "equal" if first == second else "DIFFERENT"]]


def transports() -> Table:
    """The same federation over memory and over the embedded broker."""
    rows = [["transport", "mean accuracy", "accuracies equal to memory's", "training and exchange"]]
    plain = _accuracies(memory := edge_sim.run(_demo(rounds=20)))
    rows.append([memory.transport, f"{statistics.fmean(plain.values()):.2%}", "", _seconds(memory)])
    for kind in ("amqtt", "mosquitto"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = edge_sim.run(_demo(rounds=20), broker=f"embedded:{kind}", out=Path(folder) / "run")
            except edge_sim_missing() as missing:
                rows.append([kind, "", str(missing).splitlines()[0], ""])
                continue
            mean = f"{statistics.fmean(_accuracies(result).values()):.2%}"
            rows.append([result.transport, mean, "yes" if _accuracies(result) == plain else "NO", _seconds(result)])
    return rows


def edge_sim_missing() -> type[Exception]:
    """What a broker that is not installed raises."""
    from edge_sdk.errors import UsageError  # noqa: PLC0415  # only for this

    return UsageError


def faults() -> Table:
    """200 seeds of a 6-device run with lost, doubled and reordered frames, against the clean run."""
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
    """100,000 mutated frames."""
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
    """SIGKILL of devices and of the coordinator, each five times in one run over the embedded broker."""
    rows = [["killed", "kills", "run", "accuracies equal to the run without kills", "seconds"]]
    with tempfile.TemporaryDirectory() as folder:
        _write_app(Path(folder))
        calm = _deployment(Path(folder), "calm", victim="", times=0)
        for victim in ("device", "coordinator"):
            begun_s = time.perf_counter()
            found = _deployment(Path(folder), victim, victim=victim, times=5)
            same = "yes" if found == calm else "NO"
            rows.append([victim, "5", "completed", same, f"{time.perf_counter() - begun_s:.0f}"])
    return rows


def latency() -> Table:
    """An empty round and a FedAL exchange with 10 devices over the embedded broker."""
    rows = [["", "p50 ms", "p95 ms", "goal p50 ms"]]
    for kind in ("amqtt", "mosquitto"):
        for label, method, rounds, per, goal in (
            ("empty round", "local", 200, 1, "50"),
            ("FedAL exchange", "fedal", 60, 6, "15"),
        ):
            tables = _stub_fleet(method, rounds)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result = edge_sim.run(tables, broker=f"embedded:{kind}", out=Path(folder) / "run")
                except edge_sim_missing():
                    continue
            waits = sorted(round_.wall_s / per * 1e3 for round_ in result.history[5:])
            rows.append([f"{label}, {result.transport}", *_quantiles(waits), goal])
    return [*rows, ["fsync of this disk (4 kB commit)", *_quantiles(_fsyncs()), ""]]


def install() -> Table:
    """A wheel in a clean environment: what comes, what it costs."""
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
            "from edge_sdk import Agent, LocalData, NumpyModel, PublicSet; import edge_sdk.transport.mqtt; "
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


def _demo(*, rounds: int, method: str = "fedal", seed: int = 0, standalone: bool = False) -> configs.Config:
    overrides = [f"federation.rounds={rounds}", f"federation.method={method}", f"federation.seed={seed}"]
    overrides.append(f"run.standalone={str(standalone).lower()}")
    return configs.parse(load_toml(DEMO, overrides), DEMO)


def _stub_fleet(method: str, rounds: int) -> Tables:
    """Ten devices that have next to nothing to compute."""
    return {
        "federation": {"name": "stub", "method": method, "rounds": rounds, "devices": 10},
        "train": {"local_steps": 0, "evaluate_every": 10**6},
        "run": {"standalone": False, "processes": 2},
        "fleet": [{"count": 10, "model": "softmax"}],
    }


def _outcome(method: str, bad: Faults, seed: int) -> tuple[tuple[bytes, ...], int]:
    """Final bytes of the coordinator's state and of every model; frames lost or doubled on the way."""
    tables: Tables = {
        "federation": {"name": "faults", "method": method, "rounds": 4, "devices": 6, "deadline_s": 10_000.0},
        "method": {"tau": 3} if method == "fedal" else {},
        "data": {"public": 300},
        "fleet": [{"count": 6, "model": "softmax"}],
    }
    config = configs.parse(tables, Path("faults.toml"))
    fleet = VirtualFleet(fleets.build(config), ledger=Ledger(None), faults=bad, faults_seed=seed)
    fleet.run()
    updates = fleet.server.record.updates
    models = tuple(device.agent.bench.model.state_bytes() for device in fleet.devices)
    return (keep.to_bytes(fleet.server.method_state), *models), updates["duplicate"] + updates["stale"]


_APP = """
import json, os
import numpy as np
import edge_sdk

def make():
    with np.load("data.npz") as arrays:
        mine = np.flatnonzero(arrays["y"] % 3 == int(os.environ["PART"]))
        train = edge_sdk.Samples(arrays["x"][mine], arrays["y"][mine])
        test = edge_sdk.Samples(arrays["x"], arrays["y"])
    scaled = edge_sdk.Preprocess(scale=1 / 16)
    model = edge_sdk.NumpyModel(10, (1, 8, 8), seed=int(os.environ["PART"]), preprocess=scaled)
    return edge_sdk.App(model=model, data=edge_sdk.LocalData(train=train, test=test),
                        public=edge_sdk.PublicSet.load("public.npz"))
"""


def _write_app(folder: Path) -> None:
    import numpy as np  # noqa: PLC0415  # not needed by the other sections
    from sklearn.datasets import load_digits  # noqa: PLC0415

    digits = load_digits()
    images = digits.images.astype(np.uint8)
    (folder / "kill_app.py").write_text(_APP)
    np.savez(folder / "data.npz", x=images[300:900], y=digits.target[300:900].astype(np.int64))
    np.savez(folder / "public.npz", public=images[:300])


def _deployment(folder: Path, name: str, *, victim: str, times: int) -> dict[str, float]:
    """Real coordinator and device processes; kill one of them now and then; the final accuracies."""
    rounds, pause_s = 300, 0.7
    toml = (
        f'[federation]\nname = "{name}"\nmethod = "fedmd"\nrounds = {rounds}\ndevices = 3\nclasses = 10\n'
        'deadline_s = 10.0\nretry_s = 1.0\nroster = ["d-0", "d-1", "d-2"]\n'
        '[train]\nevaluate_every = 20\n[public]\npath = "public.npz"\n'
    )
    (folder / f"{name}.toml").write_text(toml)
    out = folder / f"run-{name}"
    with EmbeddedBroker() as broker, (folder / f"{name}.log").open("wb") as log:

        def start(arguments: Sequence[str], part: int = 0) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "edge_sdk.cli", *arguments, "--broker", broker.url]
            environment = {**os.environ, "PART": str(part), "OPENBLAS_NUM_THREADS": "1"}
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

        coordinator = ["coordinator", f"{name}.toml", "--out", str(out)]
        device = ["device", "--federation", name, "--app", "kill_app:make"]
        running = {"coordinator": start(coordinator)}
        for part in range(3):
            running[f"d-{part}"] = start([*device, "--id", f"d-{part}", "--state", f"state-{name}-{part}"], part)
        for kill in range(times):
            time.sleep(pause_s + (2.0 if kill == 0 else 0.0))
            who = "coordinator" if victim == "coordinator" else f"d-{kill % 3}"
            if running[who].poll() is not None:
                raise RuntimeError(f"{who} had ended before kill {kill}: make the run longer")
            running[who].send_signal(signal.SIGKILL)
            running[who].wait()
            part = 0 if who == "coordinator" else int(who[2:])
            again = [*coordinator, "--resume"] if who == "coordinator" else [*device, "--id", who]
            again += [] if who == "coordinator" else ["--state", f"state-{name}-{part}"]
            running[who] = start(again, part)
        for process in running.values():
            process.wait(300)
    told = json.loads((out / "summary.json").read_text())
    if not told["completed"]:
        raise RuntimeError(f"{name}: {told['reason']}")
    return {row["id"]: row["accuracy"] for row in told["per_device"]}


def _fsyncs() -> list[float]:
    """Milliseconds of durable commits of 4 kB."""
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


def _quantiles(ordered: Sequence[float]) -> list[str]:
    return [f"{ordered[int(len(ordered) * share)]:.2f}" for share in (0.5, 0.95)]


def _accuracies(result: Result) -> dict[str, float | None]:
    return {device.id: device.accuracy for device in result.devices}


def _seconds(result: Result) -> str:
    return f"{sum(round_.wall_s for round_ in result.history) or result.time['wall_s']:.1f} s"


def _mean_sd(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1%} ± {statistics.stdev(values) * 100:.1f}"


def _call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def page(known: dict[str, Any]) -> str:
    """The whole page."""
    lines = [
        "# First light: measured",
        "",
        "Written by `python benchmarks/first_light.py`; nothing here is typed by hand.",
    ]
    for name in SECTIONS:
        if name not in known:
            continue
        told = known[name]
        software = ", ".join(f"{package} {version}" for package, version in told["versions"].items())
        lines += ["", f"## {told['title']}", "", *_markdown(told["table"]), ""]
        lines.append(f"`{told['command']}`, {told['date']}, {told['cores']} cores; {software}")
    return "\n".join(lines) + "\n"


def _markdown(table: Table) -> list[str]:
    head, *rows = table if len(table) > 1 else [["" for _ in table[0]], *table]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
