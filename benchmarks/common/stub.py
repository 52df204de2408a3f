"""Federations of devices that compute almost nothing, to measure the cost of messages and rounds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import edge_sim


def waits_ms(kind: str, method: str, *, devices: int, rounds: int) -> tuple[str, list[float]]:
    """The broker, and how long each round took from its first Assign on; the first rounds, which warm up, left out.

    Each device is a process of its own.  Raises UsageError where the broker is not installed.
    """
    tables: dict[str, Any] = {
        "federation": {"name": "stub", "method": method, "rounds": rounds, "devices": devices},
        "train": {"local_steps": 0, "evaluate_every": 10**6},
        "partition": {"kind": "iid"},
        "run": {"standalone": False, "processes": 2},
        "fleet": [{"count": devices, "model": "softmax"}],
    }
    with tempfile.TemporaryDirectory() as folder:
        result = edge_sim.run(tables, broker=f"embedded:{kind}", out=Path(folder) / "run")
    return result.transport, [round_.wall_s * 1e3 for round_ in result.history[5:]]
