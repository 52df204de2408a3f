"""Where the computing time of a device's round goes, by part of the code: a sampling profile of `ours.py`'s run.

    python parts.py METHOD FLEET DEVICES       (engine exact: both sides in this thread)

Each millisecond of computing time the innermost function of ours is noted; what it calls (torch, numpy, sqlite) counts
as its own.  Prints a JSON object: milliseconds per device and round by part, rounds 4 to 9: in those before nets are
traced, and in the one after devices measure themselves.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from task import tables

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from edge_sim.runs.runner import run

ROOT = Path(__file__).parents[2]
EVERY_S = 0.001
"""Computing time between two samples."""
FIRST, LAST = 4, 9
"""The rounds that are sampled."""
PACKAGES = ("edge_sdk", "coordinator", "edge_sim")


class Sampler(RunObserver):
    """Counts samples by part."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cpu_s = 0.0

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Start and end the samples."""
        if result.round == FIRST - 1:
            signal.signal(signal.SIGPROF, self._sample)
            self.cpu_s = -time.process_time()
            signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        elif result.round == LAST:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.cpu_s += time.process_time()

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        self.counts[_part(frame)] += 1


def _part(frame: FrameType | None) -> str:
    """Return package/room of the innermost function of ours."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            names = path.relative_to(ROOT).parts
            if names[0] in PACKAGES:
                return "/".join(names[:2]).removesuffix(".py")
        frame = frame.f_back
    return "Python itself"


def main() -> None:
    """One run."""
    method, fleet, count = sys.argv[1:]
    sampler = Sampler()
    run(tables(method, fleet, int(count), engine="exact"), observer=lambda _label: sampler)
    per_sample_ms = sampler.cpu_s * 1000 / sampler.counts.total() / int(count) / (LAST - FIRST + 1)
    found = {part: number * per_sample_ms for part, number in sampler.counts.most_common()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
