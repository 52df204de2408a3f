"""Our own simulator, as a deployment would talk: sessions, rounds, every weight through the codec, a ledger in memory.

python edge_side.py TASK.npz mlp|cnn       in this project's own environment; the partition is the one in TASK.npz
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from side import ROUNDS, Log, Task

sys.path.insert(0, str(Path(__file__).parents[1] / "simulation"))

from task import tables  # of benchmarks/simulation: its nets are those of side.py

from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.report.summary import summary
from edge_sim.runs.runner import run


class Stopwatch(RunObserver):
    """Notes when each round is done, but for the last one, in which devices measure themselves."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Note the time."""
        if result.round <= ROUNDS:
            self._log.round_done()


def main() -> None:
    """All rounds of FedAvg."""
    path, net = sys.argv[1:]
    log = Log(("edge-sdk",))
    watch = Stopwatch(log)
    of_run = tables("fedavg", net, len(Task.read(path).devices), engine="shards")
    of_run["run"]["stacked"] = []  # so the bits are those of one process
    found = run(of_run, observer=lambda _label: watch)
    accuracy = summary(found)["global_model"]["accuracy"]["mean"]
    told = {"accuracy": accuracy, "loss": None, "versions": log.versions()}
    sys.stdout.write("\n" + json.dumps({"ends_s": log.ends_s, "cpu_s": log.cpu_s, "lost": log.lost, **told}) + "\n")


if __name__ == "__main__":
    main()
