"""The task of the comparison, written once per number of devices so that every side reads the same file.

scikit-learn's digits, 80/20, dealt out by the simulator's own Dirichlet(0.5) partition, seed 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_sim.config.settings import DataTable, PartitionTable
from edge_sim.data import datasets
from edge_sim.data.partition import partition

SEED = 0
DATA = DataTable(source="digits", test_fraction=0.2, public=0)
PARTITION = PartitionTable(kind="dirichlet", alpha=0.5, min_samples=4)


def write(path: Path, devices: int) -> None:
    """Save x (n, 1, 8, 8), y (n,), x_test, y_test, and where each device's part of x begins (devices + 1,)."""
    data = datasets.load_dataset(DATA, SEED, path.parent)
    parts = partition(PARTITION, data.private.y, devices, data.classes, SEED)
    order = np.concatenate(parts)
    np.savez(
        path,
        x=_pixels(data.private.x[order], data.scale),
        y=data.private.y[order],
        x_test=_pixels(data.test.x, data.scale),
        y_test=data.test.y,
        starts=np.cumsum([0, *map(len, parts)]),
    )


def _pixels(raw: np.ndarray, scale: float) -> np.ndarray:
    return (raw[:, None] * scale).astype(np.float32)  # (n, 1, 8, 8)
