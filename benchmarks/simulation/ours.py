"""Our side of the measurement: a simulated federation as it is, with sessions, rounds, codec and ledger.

    python ours.py METHOD FLEET DEVICES ENGINE [FILE.npz]

Prints a Timing as JSON.
"""

from __future__ import annotations

import sys
import time

STARTED_S = time.time()

from task import now_s, tables, tell  # the clock above sees the imports

from coordinator.record import Record
from coordinator.report.result import RoundResult
from coordinator.watcher import Silent
from edge_sim.runner import run


class Stopwatch(Silent):
    """Notes when each round is done."""

    def __init__(self) -> None:
        self.ends_s: list[tuple[float, float]] = []

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:  # noqa: ARG002  # a Watcher
        """See Watcher."""
        self.ends_s.append(now_s())


def main() -> None:
    """One run."""
    method, fleet, count, engine, *npz = sys.argv[1:]
    watch = Stopwatch()
    run(tables(method, fleet, int(count), npz="".join(npz), engine=engine), watcher=lambda _label: watch)
    tell(watch.ends_s, int(count), STARTED_S, children=2 if engine in ("workers", "auto") else 0)


if __name__ == "__main__":
    main()
