"""How fast training stops when a policy fails, what the policy costs, and what a device writes to its card.

    OMP_NUM_THREADS=1 python -m benchmarks.on_device.good_guest [--write docs/results/good-guest.md]

Stopping is measured on an agent that trains against a coordinator in this process: the time from a sensor's change to
the end of the last batch.  Writes are those of the agent's process to its state folder, by strace, divided by rounds.
"""

from __future__ import annotations

import argparse
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.policy.policy import CONDITIONS
from edge_sdk.policy.sensors import FakeSensors, LinuxSensors
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec, TrainSpec
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.memory.hub import Hub

CLASSES = 10
PAUSES = 20
ROUNDS = 12
POLICY = edge_sdk.Policy(
    charging=True,
    idle_below=1.0,
    hours="00:00-23:59, 23:58-00:01",
    max_temperature_c=100,
    unthrottled=True,
    min_memory_mib=1,
    unmetered=True,
)


class Timed(edge_sdk.NumpyModel):
    """A model that takes at least `batch_s` for a batch, and knows when the last one ended."""

    batch_s = 0.0
    ended_s = 0.0

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and note when that ended."""
        time.sleep(self.batch_s)
        try:
            return super().fit(*args, **kwargs)
        finally:
            self.ended_s = time.monotonic()


def samples(count: int, seed: int) -> edge_sdk.Samples:
    """Return made-up pictures."""
    rng = np.random.default_rng(seed)
    return edge_sdk.Samples(rng.random((count, 8, 8, 1), dtype=np.float32), rng.integers(0, CLASSES, count))


def server(
    hub: Hub, method: str, devices: int, *, rounds: int, steps: int, public: PublicSet | None = None, width: int = 0
) -> Server:
    """Return a coordinator in memory."""
    chosen = load_method(method)()
    spec = FederationSpec(
        federation="guest",
        method=method,
        contract=chosen.digest,
        classes=CLASSES,
        rounds=rounds,
        train=TrainSpec(local_steps=steps, learning_rate=0.01),
        feature_dim=width,
        public=PublicSetSpec(sha256=public.spec.sha256, count=public.spec.count) if public else None,
    )
    policy = RoundPolicy(expected=devices, quorum=devices, rounds=rounds, exchanges=len(chosen.exchanges))
    return Server(spec=spec, policy=policy, method=chosen, transport=hub.link("coordinator"), ledger=Ledger(None))


def stopping(batch_s: float) -> tuple[list[float], list[float]]:
    """Return the times in s from a failing condition to the end of the last batch, and those of predict meanwhile."""
    hub, sensors, rng = Hub(), FakeSensors(), random.Random(0)
    coordinator = server(hub, "local", 1, rounds=1, steps=10**5)
    threading.Thread(target=coordinator.run, daemon=True).start()
    model = Timed(CLASSES, (1, 8, 8), seed=1)
    model.batch_s = batch_s
    part = samples(200, 0)
    agent = edge_sdk.Agent(
        federation="guest",
        broker=hub.link("a"),
        identity="a",
        model=model,
        data=edge_sdk.LocalData(train=part),
        policy=edge_sdk.Policy(max_temperature_c=80),
        sensors=sensors,
    )
    agent.start()
    stops_s, predictions_s = [], []
    for _ in range(PAUSES):
        sensors.celsius = 50.0
        steps = agent.participant.context.bench.meter.steps
        wait_until(lambda steps=steps: agent.participant.context.bench.meter.steps > steps + 2)
        time.sleep(rng.uniform(0.0, 0.2))
        sensors.celsius = 90.0
        failed_s = time.monotonic()
        time.sleep(0.5)
        for _ in range(20):
            begin_s = time.monotonic()
            agent.predict(part.x[:1])
            predictions_s.append(time.monotonic() - begin_s)
        stops_s.append(max(0.0, model.ended_s - failed_s))
    agent.stop()
    return stops_s, predictions_s


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; raises TimeoutError after a minute."""
    end_s = time.monotonic() + 60.0
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.002)


def reading_s() -> float:
    """Return the median time in s of one reading of all sensors of this machine."""
    sensors = LinuxSensors(warn=lambda _line: None)
    times_s = []
    for _ in range(300):
        begin_s = time.perf_counter()
        for check in CONDITIONS.values():
            check(POLICY, sensors, False)  # noqa: FBT003  # not resuming
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


# -- the card ---------------------------------------------------------------------------------------------------------


class CountedStore(SqliteStore):
    """A store that knows how many bytes it was given to keep."""

    kept_bytes = 0

    def save(self, done: FinishedExchange, start: RoundStart | None = None) -> None:
        """Count, and save."""
        self.kept_bytes += len(done.assign) + len(done.upload)
        self.kept_bytes += len(start.model) + len(start.method) if start is not None else 0
        super().save(done, start)


def device_on_disk(method: str, hidden: int, folder: Path) -> None:
    """Run ROUNDS rounds of a device with a state folder beside one in memory, and print what it kept."""
    hub = Hub()
    public = PublicSet(samples(400, 9).x)
    coordinator = server(hub, method, 2, rounds=ROUNDS, steps=5, public=public, width=hidden)
    store = CountedStore(folder / "guest.db")
    agents = []
    for number, name in enumerate(("a", "b")):
        agents.append(
            edge_sdk.Agent(
                federation="guest",
                broker=hub.link(name),
                identity=name,
                model=model_of(hidden, number),
                data=edge_sdk.LocalData(train=samples(100, number)),
                public=public,
                share_weights=True,
                state=store if name == "a" else None,
            )
        )
    threading.Thread(target=coordinator.run, daemon=True).start()
    for agent in agents:
        agent.start()
    wait_until(lambda: not any(agent.running for agent in agents))
    print(f"kept {store.kept_bytes}")  # read by the process that traces this one


def model_of(hidden: int, seed: int) -> Any:
    """Return a net with a hidden layer of this width; 0: a linear one in numpy."""
    if not hidden:
        return edge_sdk.NumpyModel(CLASSES, (1, 8, 8), seed=seed)
    import torch

    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
    )
    return edge_sdk.TorchModel(net, classes=CLASSES)


def writes(method: str, hidden: int) -> tuple[float, float, float]:
    """Return the bytes kept, the bytes written and the syncs of a round of one device, its start and end included."""
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "calls"
        command = ["strace", "-f", "-y", "-s", "0", "-e", "trace=pwrite64,write,fsync,fdatasync", "-o", str(log)]
        command += [sys.executable, "-m", "benchmarks.on_device.good_guest", "--device", method, str(hidden), name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # ourselves
        calls = [line for line in log.read_text(errors="replace").splitlines() if f"<{folder}/guest.db" in line]
    sizes = [re.search(r"write(?:64)?\([^,]*, [^,]*, (\d+)", line) for line in calls]
    written = sum(int(size[1]) for size in sizes if size)
    syncs = sum("sync(" in line for line in calls)
    kept = int(said.split()[-1])
    return kept / ROUNDS, written / ROUNDS, syncs / ROUNDS


# -- the page ---------------------------------------------------------------------------------------------------------


def percentile_ms(values_s: Sequence[float], share: float) -> str:
    """Return a percentile in milliseconds."""
    return f"{1000 * float(np.quantile(values_s, share)):.1f}"


def page() -> str:
    """Measure everything, and return the page."""
    lines = [HEAD.format(python=platform.python_version(), machine=platform.machine(), pauses=PAUSES)]
    lines += ["| a batch takes | time to stop, median | largest | predict() while paused, median | p99 |"]
    lines += ["|---|---|---|---|---|"]
    for batch_s in (0.0, 0.02, 0.08):
        stops_s, predictions_s = stopping(batch_s)
        stop, most = percentile_ms(stops_s, 0.5), percentile_ms(stops_s, 1.0)
        predict, p99 = percentile_ms(predictions_s, 0.5), percentile_ms(predictions_s, 0.99)
        batch = f"{1000 * batch_s:g} ms" if batch_s else "under 1 ms"
        lines += [f"| {batch} | {stop} ms | {most} ms | {predict} ms | {p99} ms |"]
    lines += ["", SENSORS.format(reading_ms=1000 * reading_s(), share=reading_s() / 0.1), CARD.format(rounds=ROUNDS)]
    lines += ["| method | model | kept a round | written | times | syncs |", "|---|---|---|---|---|---|"]
    for method, hidden in (("fedmd", 0), ("fedproto", 128), ("fedmd", 512), ("fedavg", 512), ("fedal", 128)):
        kept, written, syncs = writes(method, hidden)
        net = f"64-{hidden}-10, torch, adam" if hidden else "64-10, numpy, adam"
        times = f"{written / kept:.2f}"
        lines += [f"| {method} | {net} | {kept / 1000:,.1f} kB | {written / 1000:,.1f} kB | {times} | {syncs:.1f} |"]
    return "\n".join(lines) + "\n"


HEAD = """\
# A good guest: stopping, and what is written to the card

`OMP_NUM_THREADS=1 python -m benchmarks.on_device.good_guest --write docs/results/good-guest.md` writes this page.
Python
{python} on {machine}, two cores shared with other work.

## Time to stop

From the change of a sensor to the end of the last batch, {pauses} times at random moments, with an agent that trains
against a coordinator in the same process. The sensors are read every 100 ms; the goal is 200 ms.
"""
SENSORS = """\
One reading of all sensors of this machine takes {reading_ms:.2f} ms, {share:.1%} of the time between two; boards have
more zones and slower processors. NetworkManager and vcgencmd are queried at most every 10 s.
"""
CARD = """\
## Bytes and syncs of the state

Writes and syncs of one device's state file in {rounds} rounds, by strace, its creation and its end included, divided by
the rounds. *Kept* is what a round must keep over a power cut: model and optimiser before it, each Assign and each
upload. The goal is at most 3 times that, and 20 syncs. SQLite adds 8 KiB to each round, even to a small one.
"""


def main() -> None:
    """Print the page or write it; or be the device that is traced."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--device", nargs=3, metavar=("METHOD", "HIDDEN", "FOLDER"))
    args = parser.parse_args()
    if args.device:
        method, hidden, folder = args.device
        device_on_disk(method, int(hidden), Path(folder))
        return
    if shutil.which("strace") is None:
        parser.exit(2, "strace is not installed\n")
    text = page()
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    else:
        print(text)  # a script


if __name__ == "__main__":
    main()
