"""What a device costs its board, beside a SuperNode of Flower in the same run: packages, disk, memory, fsyncs.

    python -m benchmarks.on_device.footprint [FOLDER]          writes docs/results/footprint.md

Each is installed from its package into a fresh virtual environment (FOLDER keeps them).  The task: softmax regression
on 64 pixels of scikit-learn's digits, trained in numpy on two devices, averaged in a few rounds over loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from coordinator.broker.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "footprint.md"
FLOWER = "flwr==1.41.0"
ROUNDS = 5
IDLE_S = 5.0
PATIENCE_S = 900.0
GOALS: Mapping[str, float] = {"import, processor s": 0.2, "memory idle, MiB": 40}
"""Goals of ours, by row."""
LOGITS_GOAL_MIB = 45
SYNC_CALLS = ("fsync", "fdatasync", "sync_file_range", "msync")

_EDGE_APP = """
import os
import numpy as np
import edge_sdk

def make():
    with np.load(os.environ["FOOTPRINT_DATA"]) as arrays:
        samples = edge_sdk.Samples(arrays["x"], arrays["y"])
    model = edge_sdk.NumpyModel(10, (1, 8, 8), seed=0, preprocess=edge_sdk.Preprocess(scale=1 / 16))
    return edge_sdk.App(model=model, data=edge_sdk.LocalData(train=samples), share_weights=True)
"""

_FLOWER_CLIENT = """
import os
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    weights, bias = (array.copy() for array in message.content["arrays"].to_numpy_ndarrays())
    with np.load(os.environ["FOOTPRINT_DATA"]) as arrays:
        x, y = arrays["x"].reshape(len(arrays["x"]), -1).astype(np.float32) / 16, arrays["y"]
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch = rng.integers(0, len(x), 32)
        p = np.exp(x[batch] @ weights + bias)
        p /= p.sum(1, keepdims=True)
        p[np.arange(32), y[batch]] -= 1
        weights -= 0.1 * x[batch].T @ p / 32
        bias -= 0.1 * p.mean(0)
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(content=RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": metrics}), reply_to=message)
"""

_FLOWER_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    start = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid=grid, initial_arrays=start, num_rounds=int(context.run_config["num-server-rounds"]))
"""

_FLOWER_PROJECT = f"""
[project]
name = "footprint-app"
version = "1.0.0"
description = "softmax regression by FedAvg"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "footprint_app.server:app"
clientapp = "footprint_app.client:app"
[tool.flwr.app.config]
num-server-rounds = {ROUNDS}
"""

_LIST = """
import importlib.metadata as m, json, os
own = [d for d in m.distributions() if d.name.lower() not in ("pip", "setuptools")]
size = lambda d: sum(os.path.getsize(p) for f in d.files or () if os.path.isfile(p := d.locate_file(f)))
print(json.dumps({d.name.lower(): size(d) for d in own}))
"""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one device costs."""

    name: str
    packages: int
    megabytes: float
    """Installed, without pip and setuptools; 10^6 bytes."""
    import_s: float
    """Processor seconds to start Python and load what the device's command loads, the median of five."""
    idle_mib: float
    """Memory (PSS) of the device's processes while it waits for a round."""
    peak_mib: float
    """The most of it during the rounds."""
    processes: int
    """The most processes of the device at one time."""
    syncs: float
    """Calls a round that wait for the disk."""
    logits_peak_mib: float | None = None
    """The peak of memory in rounds of FedMD, with logits for a public set, or None for a peer without such a method."""


class Watch:
    """Samples the memory of a process and all its children."""

    def __init__(self, pid: int) -> None:
        self.mib: list[float] = []
        self.processes: list[int] = []
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            tree = _tree(self._pid)
            self.mib.append(sum(map(_pss_mib, tree)))
            self.processes.append(len(tree))

    def __enter__(self) -> Watch:  # noqa: PYI034  # Self is not in Python 3.10
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _tree(pid: int) -> list[int]:
    """Return a process and all that it started, as far as they still run."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _pss_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


Run = Callable[[Path, Path, Callable[[Sequence[str]], Sequence[str]]], tuple[float, float, int]]
"""(environment, folder, wrap): runs all rounds; idle and peak MiB, and processes.  wrap: of the watched command."""


@dataclass(frozen=True)
class Side:
    """One of the two: how it is installed, what its command loads, and how a run of it begins and ends."""

    name: str
    install: Callable[[Path], str]
    """Returns what pip is given; the argument is a folder for files."""
    loads: str
    run: Run
    run_logits: Run | None = None
    """The same with FedMD."""


def measure(side: Side, base: Path) -> Footprint:
    """Install one side, and run its task twice: watched, and traced."""
    environment = _installed(side, base)
    python = str(environment / "bin" / "python")
    sizes: Mapping[str, int] = json.loads(subprocess.run([python, "-c", _LIST], capture_output=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as temporary:
        idle, peak, processes = side.run(environment, Path(temporary), lambda command: command)
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "trace"
        trace = ("strace", "-f", "-qq", "-e", f"trace={','.join(SYNC_CALLS)}", "-o", str(log))
        side.run(environment, Path(temporary), lambda command: (*trace, *command))
        syncs = sum(any(f"{call}(" in line for call in SYNC_CALLS) for line in log.read_text().splitlines())
    logits_peak = None
    if side.run_logits is not None:
        with tempfile.TemporaryDirectory() as temporary:
            _, logits_peak, _ = side.run_logits(environment, Path(temporary), lambda command: command)
    return Footprint(
        name=side.name,
        logits_peak_mib=logits_peak,
        packages=len(sizes),
        megabytes=sum(sizes.values()) / 1e6,
        import_s=statistics.median(_cpu_s([python, "-c", side.loads]) for _ in range(5)),
        idle_mib=idle,
        peak_mib=peak,
        processes=processes,
        syncs=syncs / ROUNDS,
    )


def _installed(side: Side, base: Path) -> Path:
    environment = base / side.name.split()[0].lower()
    if not (environment / "installed").exists():
        venv.create(environment, with_pip=True, clear=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, side.install(base)], check=True, capture_output=True)
        (environment / "installed").touch()
    return environment


def _cpu_s(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _edge_wheel(base: Path) -> str:
    """Build the wheel of a copy of this checkout; its path."""
    source = base / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in ("edge_sdk", "coordinator", "edge_sim", "firmware_profiles"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    wheels = base / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return str(next(wheels.glob("*.whl")))


def _run_edge(
    environment: Path,
    folder: Path,
    wrap: Callable[[Sequence[str]], Sequence[str]],
    *,
    method: str = "fedavg",
    more: str = "",
) -> tuple[float, float, int]:
    """A coordinator of this checkout, and two devices from the wheel; more: lines of the federation's TOML."""
    (folder / "footprint_app.py").write_text(_EDGE_APP)
    (folder / "federation.toml").write_text(
        f'[federation]\nname = "footprint"\nmethod = "{method}"\nrounds = {ROUNDS}\ndevices = 2\nclasses = 10\n'
        f"[train]\nlocal_steps = 10\n{more}"
    )
    np.savez(folder / "public.npz", public=load_digits().images[1000:1300].astype(np.uint8))
    with EmbeddedBroker("mosquitto") as broker, _Processes(folder, folder / "data.npz") as processes:
        own = (str(environment / "bin" / "edge-sdk"), "device", "--broker", broker.url, "--federation", "footprint")
        device = (*own, "--app", "footprint_app:make", "--id")
        here = (sys.executable, "-m", "edge_sdk.cli", "coordinator", "federation.toml", "--broker", broker.url)
        coordinator = processes.start("coordinator", (*here, "--out", "run"))
        watched = processes.start("watched", wrap((*device, "one")))
        processes.until_said("watched", "accepted")
        idle = _idle_mib(watched.pid)
        with Watch(watched.pid) as watch:
            processes.start("other", (*device, "two"))
            processes.wait(coordinator)
            processes.wait(watched)
    return idle, max(watch.mib), max(watch.processes)


def _run_flower(
    environment: Path, folder: Path, wrap: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[float, float, int]:
    """A SuperLink and two SuperNodes, which start a process for each message."""
    app, port = folder / "app", _free_port()
    (app / "footprint_app").mkdir(parents=True)
    files = {"__init__.py": "", "client.py": _FLOWER_CLIENT, "server.py": _FLOWER_SERVER}
    for name, text in files.items():
        (app / "footprint_app" / name).write_text(text)
    (app / "pyproject.toml").write_text(_FLOWER_PROJECT)
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    programs, host = environment / "bin", ("--insecure", "--host", "127.0.0.1")
    with _Processes(folder, folder / "data.npz", programs) as processes:
        link = (str(programs / "flower-superlink"), *host, "--disable-runtime-dependency-installation")
        processes.start("link", (*link, "--port", str(port)))
        processes.until_said("link", "running on")
        node = (str(programs / "flower-supernode"), *host, "--superlink", f"127.0.0.1:{port}", "--port")
        watched = processes.start("watched", wrap((*node, str(_free_port()))))
        processes.start("other", (*node, str(_free_port())))
        processes.until_said("watched", "running on")
        idle = _idle_mib(watched.pid)
        with Watch(watched.pid) as watch:
            processes.wait(processes.start("run", (str(programs / "flwr"), "run", "app", "here", "--stream")))
    if "Strategy execution finished" not in processes.said("run"):
        raise RuntimeError(f"Flower did not finish:\n{processes.said('run')[-2000:]}")
    return idle, max(watch.mib), max(watch.processes)


def _idle_mib(pid: int) -> float:
    """Return the median over some seconds, after as many to come to rest."""
    time.sleep(IDLE_S)
    with Watch(pid) as watch:
        time.sleep(IDLE_S)
    return statistics.median(watch.mib)


class _Processes:
    """The processes of a run; all of them, and what they started, are ended with it."""

    def __init__(self, folder: Path, data: Path, programs: Path | None = None) -> None:
        digits = load_digits()
        np.savez(data, x=digits.images[:400].astype(np.uint8), y=digits.target[:400].astype(np.int64))
        self._folder, self._running = folder, list[subprocess.Popen[bytes]]()
        path = os.environ["PATH"] if programs is None else f"{programs}{os.pathsep}{os.environ['PATH']}"
        here = "127.0.0.1,localhost"
        own = {"FOOTPRINT_DATA": str(data), "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0"}
        self._environment = {**os.environ, **own, "PATH": path, "NO_PROXY": here, "no_proxy": here}

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running.append(process)
        return process

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def until_said(self, name: str, text: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while text not in self.said(name):
            if time.monotonic() > end_s:
                raise RuntimeError(f"{name} never said {text!r}:\n{self.said(name)[-2000:]}")
            time.sleep(0.1)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait(PATIENCE_S):
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}; see {self._folder}")

    def __enter__(self) -> _Processes:  # noqa: PYI034  # Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [pid for process in self._running for pid in _tree(process.pid)]:
            with suppress(OSError):
                os.kill(pid, 9)
        for process in self._running:
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


SIDES = (
    Side(
        "edge-sdk device",
        _edge_wheel,
        "import edge_sdk.agent.app, edge_sdk.transport.mqtt.transport; edge_sdk.NumpyModel",
        _run_edge,
        partial(_run_edge, method="fedmd", more='[public]\npath = "public.npz"\n'),
    ),
    Side(
        "Flower SuperNode",
        lambda _base: FLOWER,
        "import flwr.clientapp, numpy; from flwr.supernode.cli import flower_supernode",
        _run_flower,
    ),
)

HEAD = f"""\
# Footprint of a device, beside a Flower SuperNode

Written by `python -m benchmarks.on_device.footprint` on {{date}}; nothing here is typed by hand.
Both are installed from their
packages in fresh virtual environments ({FLOWER} without extras), and do the same task in the same run: softmax
regression on 64 pixels, 10 steps of 32 samples a round in numpy, the weights of two devices averaged in {ROUNDS} rounds
over loopback on one x86-64 machine. Figures are those of one of the two devices with all processes that it starts.

| | {{names}} | ratio | our goal |
|---|---|---|---|---|
"""

AFTER = """
Packages and megabytes are without pip and setuptools. The wheel of edge-sdk also holds the coordinator and the
simulator, which a device never loads. Memory is PSS, so memory that processes share is divided among them. Idle is the
median over {idle:g} s after the device has joined and before the first round. The peak is over all rounds, sampled 20
times a second. While edge-sdk's device is idle the other has not started, because the run would then begin, so it
shares nothing. Both SuperNodes are running. Import is processor time, including Python's own start. Syncs are the calls
of {calls} that strace counts from start to end, divided by the rounds. A
device of edge-sdk makes a round durable before it acknowledges it, and then the model that its app predicts with. A
SuperNode starts a process for each message, which loads numpy and the app again; a device of edge-sdk is one process.
"""


def page(found: Sequence[Footprint]) -> str:
    """The text of docs/results/footprint.md."""
    rows: list[tuple[str, Callable[[Footprint], float], str]] = [
        ("packages", lambda each: each.packages, "{:.0f}"),
        ("installed, MB", lambda each: each.megabytes, "{:.0f}"),
        ("import, processor s", lambda each: each.import_s, "{:.2f}"),
        ("memory idle, MiB", lambda each: each.idle_mib, "{:.0f}"),
        ("memory in a round, peak MiB", lambda each: each.peak_mib, "{:.0f}"),
        ("processes, most at one time", lambda each: each.processes, "{:.0f}"),
        ("syncs a round", lambda each: each.syncs, "{:.1f}"),
    ]
    lines = []
    for name, value, form in rows:
        values = [value(each) for each in found]
        ratio = f"{values[0] / values[1]:.2f}" if values[1] else "-"
        goal = f"{GOALS[name]:g}{' met' if values[0] <= GOALS[name] else ''}" if name in GOALS else "-"
        lines.append(f"| {name} | {' | '.join(form.format(each) for each in values)} | {ratio} | {goal} |\n")
    for each in found:
        if each.logits_peak_mib is not None:
            met = " met" if each.logits_peak_mib <= LOGITS_GOAL_MIB else ""
            peak = f"{each.logits_peak_mib:.0f}"
            lines.append(f"| the same with FedMD, MiB | {peak} | - | - | {LOGITS_GOAL_MIB}{met} |\n")
    head = HEAD.format(date=time.strftime("%Y-%m-%d"), names=" | ".join(each.name for each in found))
    return head + "".join(lines) + AFTER.format(idle=IDLE_S, calls=", ".join(SYNC_CALLS))


def main() -> None:
    """Measure both sides, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="keeps the environments for the next run (default: a temporary folder)",
    )
    base = parser.parse_args().folder or Path(tempfile.mkdtemp())
    base.mkdir(parents=True, exist_ok=True)
    results = []
    for each in SIDES:
        results.append(measure(each, base.absolute()))
        print(results[-1], flush=True)
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
