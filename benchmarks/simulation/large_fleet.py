"""A large fleet of which few take part in each round: computing time and memory of start and rounds.

    python -m benchmarks.simulation.large_fleet --mnist mnist.npz [--method fedproto] [--devices 100000]
        [--participants 1000] [--rounds 20] [--out runs/large] [--memory-gb 2] [--processes 2] [--profile]

The samples are MNIST's 60,000 digits, cut to 20 x 20 pixels and shifted by up to two pixels ten times over; the net is
dense, with 26,000 weights.  200 devices are measured, at the end.  Prints a JSON object: seconds of computing until the
devices are built and have joined, of each round and of all; resident memory when the first round opens, and its peak,
in MiB; the load at the end.  Of several processes the seconds of start and rounds are those of the first one;
`computing_s` and the peak are of all.
--profile: the functions of ours in which a sample each 5 ms of computing found start and rounds, 25 of each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from tempfile import gettempdir
from types import FrameType
from typing import Any

import numpy as np

from coordinator.record.observer import RunObserver, RunView
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sim.runs.runner import run

COPIES, SHIFT, EDGE, TESTED = 10, 2, 4, 2000
"""How often the digits are shifted, by at most so many pixels, what is cut from each side, and the test samples."""
STEPS, BATCH, RATE, MEASURED = 5, 4, 0.05, 200
EVERY_S = 0.005
PACKAGES = ("/edge_sdk/", "/coordinator/", "/edge_sim/")
MOST_LINES = 25
_MIB = 2**20


def samples(mnist: Path) -> Path:
    """Write the samples once, and return their file."""
    path = Path(gettempdir()) / "edge-large-fleet.npz"
    if path.exists():
        return path
    with np.load(mnist) as file:
        x, y, tested = (file[name] for name in ("x_train", "y_train", "x_test"))
        y_test = file["y_test"][:TESTED]
    cut = slice(EDGE, -EDGE)
    x, tested = (each.reshape(-1, 28, 28)[:, cut, cut] for each in (x, tested[:TESTED]))
    draws = np.random.default_rng(0)
    shifts = [tuple(draws.integers(-SHIFT, SHIFT + 1, 2)) for _ in range(COPIES)]
    shifted = np.concatenate([np.roll(x, by, (1, 2)) for by in shifts])
    np.savez(path, x_train=shifted, y_train=np.tile(y, COPIES), x_test=tested, y_test=y_test)
    return path


def tables(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the tables of the run's TOML."""
    devices, participants = arguments.devices, arguments.participants
    bound = {} if arguments.memory_gb is None else {"memory_bytes": int(arguments.memory_gb * 10**9)}
    bound |= {} if arguments.processes == 1 else {"processes": arguments.processes}
    return {
        "federation": {
            "name": "large",
            "method": arguments.method,
            "rounds": arguments.rounds,
            "devices": devices,
            "participants": participants,
            "quorum": participants * 9 // 10,
            "feature_dim": 64,
        },
        "data": {"source": "npz", "path": str(samples(arguments.mnist)), "split": [8, 1, 1]},
        "partition": {"kind": "iid"},
        "train": {"local_steps": STEPS, "batch_size": BATCH, "learning_rate": RATE, "optimiser": arguments.optimiser}
        | {"evaluate_every": 10**6},
        "run": {"standalone": False, "measured": min(devices, MEASURED), **bound},
        "fleet": [{"board": "rpi4", "link": "wifi", "model": "mlp"}],
    }


class Times(RunObserver):
    """Notes computing time and memory at the start of the run and after each round."""

    def __init__(self, *, profile: bool) -> None:
        self.profile = profile
        self.built_s = self.joined_s = self.resident_mib = 0.0
        self.rounds: list[float] = []
        self.seen: dict[str, Counter[str]] = {"start": Counter(), "rounds": Counter()}
        if profile:
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)

    def begun(self, view: RunView) -> None:  # noqa: ARG002  # of RunObserver
        """Note when the devices begin to be built."""
        self.built_s = time.process_time()

    def opened(self, at: ExchangeId, devices: Collection[str]) -> None:  # noqa: ARG002  # of RunObserver
        """Note when all have joined."""
        if not self.joined_s:
            self.joined_s, self.resident_mib = time.process_time(), resident_mib()

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Note when a round is over."""
        self.rounds.append(time.process_time())

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        while frame is not None and not any(name in frame.f_code.co_filename for name in PACKAGES):
            frame = frame.f_back
        if frame is not None:
            path = Path(frame.f_code.co_filename)
            self.seen["rounds" if self.joined_s else "start"][f"{path.stem}.{frame.f_code.co_name}"] += 1


def resident_mib() -> float:
    """Return the memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / _MIB


def main() -> None:
    """Run the fleet and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="an npz of MNIST")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--participants", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--optimiser", default="adam")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    times, begun_s = Times(profile=arguments.profile), time.monotonic()
    result = run(tables(arguments), out=arguments.out, observer=lambda _label: times)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    done_s = time.process_time() + others.ru_utime + others.ru_stime
    signal.setitimer(signal.ITIMER_PROF, 0)
    each = [after - before for before, after in zip([times.joined_s, *times.rounds], times.rounds, strict=False)]
    figures: dict[str, float | list[float]] = {
        "begun_s": times.built_s,
        "joined_s": times.joined_s,
        "round_s": statistics.median(each),
        "rounds_s": each,
        "computing_s": done_s,
        "wall_s": time.monotonic() - begun_s,
        "resident_mib": times.resident_mib,
        "peak_mib": result.memory["peak_mib"],
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figures))
    if arguments.profile:
        for part, seen in times.seen.items():
            for name, count in seen.most_common(MOST_LINES):
                print(f"{part}: {100 * count / seen.total():5.1f} % {name}")


if __name__ == "__main__":
    main()
