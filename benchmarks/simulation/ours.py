"""Our side of the measurement: a simulated federation as it is, with sessions, rounds, codec and ledger.

    python ours.py METHOD FLEET DEVICES ENGINE [FILE.npz]

Prints a Timing as JSON.
"""

from __future__ import annotations

import sys
import time

STARTED_S = time.time()

from task import children_s, now_s, tables, tell  # the clock above sees the imports

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from edge_sim.runs.runner import run

CHILDREN = {"auto": 1, "shards": 1}
"""The processes beside the coordinator's, on two cores, by engine."""


class Stopwatch(RunObserver):
    """Notes when each round is done."""

    def __init__(self) -> None:
        self.ends_s: list[tuple[float, float]] = []
        self.child_ends_s: list[dict[int, float]] = []

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Note the time."""
        self.ends_s.append(now_s())
        self.child_ends_s.append(children_s())


def main() -> None:
    """One run."""
    method, fleet, count, engine, *npz = sys.argv[1:]
    watch = Stopwatch()
    run(tables(method, fleet, int(count), npz="".join(npz), engine=engine), observer=lambda _label: watch)
    tell(watch.ends_s, int(count), STARTED_S, CHILDREN.get(engine, 0), watch.child_ends_s)


if __name__ == "__main__":
    main()
