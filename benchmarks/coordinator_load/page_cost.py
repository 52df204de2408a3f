"""CPU seconds that the live page costs a run with 100 or 1,000 devices, once a second as a browser looks.

    python -m benchmarks.coordinator_load.page_cost --devices 100

A simulated federation runs for some rounds; then each state that the page would be sent is made, compared with the one
before and encoded, again and again.  The page does that at most once a second, so the CPU seconds of one state are its
share of one core.

    python -m benchmarks.coordinator_load.page_cost --devices 100 --minutes 3

serves the page for so long to a browser in another process, while the run's thread turns ten times a second and
a tenth of the devices change in each second; the share of one core is that of this whole process.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coordinator.record.observer import ObserverGroup, RunObserver, RunView
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.page.feed import Feed
from coordinator.results.page.live import PageObserver
from coordinator.results.page.serving import served
from coordinator.results.report.progress_file import About
from edge_sim import run

TABLES: dict[str, Any] = {
    "federation": {"name": "cost", "method": "fedavg", "rounds": 3, "seed": 0},
    "train": {"local_steps": 1, "evaluate_every": 1},
    "partition": {"kind": "iid"},
    "run": {"standalone": "off"},
}


class Kept(RunObserver):
    """Measures after each round."""

    def __init__(self, devices: int, times: int) -> None:
        about = About(federation="cost", method="fedavg", seed=0, rounds=3, expected=devices)
        self._ticks_s = 0.0
        self._feed = Feed(clock=lambda: 0.0)
        self.page = PageObserver(self._feed, about, "", virtual=True, clock=self._tick)
        self.view: RunView | None = None
        self._times = times
        self.run_s: list[float] = []
        self.page_s: list[float] = []
        self.bytes: list[int] = []

    def _tick(self) -> float:
        self._ticks_s += 10.0
        return self._ticks_s

    def begun(self, view: RunView) -> None:
        """Keep the view."""
        self.page.begun(view)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Make states, and encode them."""
        del result, of
        number = None
        for _ in range(self._times):
            begun_s = time.process_time()
            self.page.waited(record)
            made_s = time.process_time()
            found = self._feed.newer_than(number)
            done_s = time.process_time()
            if found is None:
                raise SystemExit("no state was published")
            number = found.number
            self.run_s.append(made_s - begun_s)
            self.page_s.append(done_s - made_s)
            self.bytes.append(len(found.text))


def tables(devices: int, folder: Path) -> dict[str, Any]:
    """Return the settings of a run with this many devices, each with ten samples of noise."""
    rng, path = np.random.default_rng(0), folder / "noise.npz"
    arrays: dict[str, Any] = {}
    for part, count in (("train", 10 * devices), ("test", 200)):
        arrays[f"x_{part}"] = rng.normal(size=(count, 4, 4)).astype(np.float32)
        arrays[f"y_{part}"] = np.arange(count) % 10
    np.savez(path, **arrays)
    return TABLES | {
        "federation": TABLES["federation"] | {"devices": devices},
        "data": {"source": "npz", "path": str(path), "public": 0},
        "fleet": [{"count": devices, "model": "softmax", "board": "rpi4"}],
    }


BROWSER = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1] + "events") as answer:
    for line in answer:
        pass
"""


class Serving(RunObserver):
    """Serves the page from the end of the second round on, and measures what that costs this process."""

    def __init__(self, devices: int, minutes: float) -> None:
        about = About(federation="cost", method="fedavg", seed=0, rounds=3, expected=devices)
        self._feed, self._for_s = Feed(), 60 * minutes
        self.page = PageObserver(self._feed, about, "", virtual=False)

    def begun(self, view: RunView) -> None:
        """Keep the view."""
        self.page.begun(view)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Serve after the second round."""
        del of
        if result.round != 2:
            return
        said: list[str] = []
        with served(self._feed, "127.0.0.1:0", said.append), contextlib.ExitStack() as stack:
            browser = subprocess.Popen([sys.executable, "-c", BROWSER, said[0].removeprefix("page: ")])
            stack.callback(browser.terminate)
            idle_s = self._turn(record, page=False)
            used_s = self._turn(record, page=True)
        share = (used_s - idle_s) / self._for_s
        print(
            f"{self._for_s:.0f} s with a browser: {used_s:.1f} s of CPU, {idle_s:.1f} s without: {share:.2%} of a core"
        )

    def _turn(self, record: RunRecord, *, page: bool) -> float:
        """Return the CPU seconds of a run's loop that has nothing else to do."""
        begun_s, cpu_s, place = time.monotonic(), time.process_time(), 0
        names = sorted(record.bytes_up)
        while time.monotonic() - begun_s < self._for_s:
            for name in names[place % 100 :: 100]:  # ten turns are a second
                record.bytes_up[name] += 100
            place += 1
            if page:
                self.page.waited(record)
            time.sleep(0.1)
        return time.process_time() - cpu_s


def serve(devices: int, minutes: float) -> None:
    """Print the share of a core that a page takes which a browser looks at."""
    with TemporaryDirectory() as folder:
        run(tables(devices, Path(folder)), observer=lambda _label: ObserverGroup(Serving(devices, minutes)))


def main() -> None:
    """Measure, and print one line for each thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=0.0, help="serve the page for so long, and measure that")
    args = parser.parse_args()
    if args.minutes:
        serve(args.devices, args.minutes)
        return
    kept = Kept(args.devices, args.times)
    with TemporaryDirectory() as folder:
        run(tables(args.devices, Path(folder)), observer=lambda _label: ObserverGroup(kept))
    for name, found in (("the run's thread", kept.run_s), ("the page's thread", kept.page_s)):
        print(f"{name}: {1000 * sorted(found)[len(found) // 2]:.1f} ms of CPU a state, {1000 * max(found):.1f} at most")
    print(f"{sorted(kept.bytes)[len(kept.bytes) // 2]} bytes a state to each browser")


if __name__ == "__main__":
    main()
