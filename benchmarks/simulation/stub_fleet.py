"""Rounds of very many devices whose model is nothing, so that what is left is sessions, frames and the coordinator.

    python stub_fleet.py DEVICES ENGINE

Prints a Timing as JSON.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

STARTED_S = time.time()

import numpy as np  # the clock above sees the imports
from ours import CHILDREN, Stopwatch
from task import ROUNDS, tell

from edge_sim.runs.runner import run

SIDE, CLASSES, EACH = 2, 2, 4  # of two samples a class would often have one, and such classes are not told of


def main() -> None:
    """One run."""
    devices, engine = int(sys.argv[1]), sys.argv[2]
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.npz"
        x = np.random.default_rng(0).normal(size=(devices * EACH, SIDE, SIDE)).astype(np.float32)
        y = np.arange(len(x)) % CLASSES
        np.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
        tables = {
            "federation": {
                "name": "stub",
                "method": "fedproto",
                "rounds": ROUNDS,
                "devices": devices,
                "feature_dim": SIDE * SIDE,
                "deadline_s": 10_000.0,
            },
            "train": {"local_steps": 0, "evaluate_every": 10**6},
            "data": {"source": "npz", "path": str(path), "public": 0},
            "partition": {"kind": "iid", "min_samples": 1},
            "fleet": [{"count": devices, "model": "softmax"}],
            "run": {"standalone": False, "engine": engine},
        }
        run(tables, observer=lambda _label: watch)
    tell(watch.ends_s, devices, STARTED_S, CHILDREN.get(engine, 0), watch.child_ends_s)


if __name__ == "__main__":
    main()
