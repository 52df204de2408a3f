"""A federation of phones that recognise six activities by their motion sensors, one device for each person.

EDGE_DATA names a folder with unpack.py and the data set uci_har; without it, the motion of six persons is simulated.
"""

import os
import runpy
from pathlib import Path

import numpy as np

import edge_sim
from edge_sim.notebook.outcomes import SimulationResult


def activities(folder: Path) -> dict[str, np.ndarray]:
    """UCI HAR by person: windows (n, 128, 9) at 50 Hz, activities 0..5, and who wore the phone."""
    return runpy.run_path(str(folder / "unpack.py"))["load"]("uci_har")


def made_up(persons: int = 6, each: int = 90) -> dict[str, np.ndarray]:
    """Windows (n, 32, 3) whose three activities are rhythms; each person has a pace and a strength."""
    rng, count = np.random.default_rng(0), persons * each
    y, person = rng.integers(0, 3, count), np.arange(count) % persons
    pace = (1.0 + y)[:, None] * (1 + 0.05 * person)[:, None]
    phase = 2 * np.pi * pace * np.arange(32) / 32 + rng.uniform(0, 6, count)[:, None]  # (n, 32)
    x = np.stack([np.sin(phase), np.cos(phase), np.sin(2 * phase)], axis=2) + rng.normal(0, 0.6, (count, 32, 3))
    test = np.arange(count) % 5 == 0
    parts = {"x": x.astype(np.float32), "y": y, "user": person}
    return {f"{name}_{part}": a[rows] for name, a in parts.items() for part, rows in (("train", ~test), ("test", test))}


def run(data: dict[str, np.ndarray], rounds: int = 10) -> SimulationResult:
    """Run the federation: each person's windows stay on one device, whose net is one of four architectures."""
    persons = len(np.unique(data["user_train"]))
    config = {
        "federation": {
            "name": "activity",
            "method": "fedproto",
            "rounds": rounds,
            "devices": persons,
            "feature_dim": 32,
        },
        "data": {"kind": "series", "normalise": "fit"},
        "partition": {"kind": "user"},
        "train": {"learning_rate": 0.005, "local_steps": 10},
        "fleet": [{"count": persons, "model": "group:series-4"}],
    }
    return edge_sim.run(config, data={name: values for name, values in data.items() if name != "user_test"})


if __name__ == "__main__":
    folder = Path(os.environ.get("EDGE_DATA", "."))
    for device in run(activities(folder) if (folder / "uci_har.npz").is_file() else made_up()).devices:
        print(f"{device.id} {device.model}: {device.accuracy:.1%}, alone {device.standalone_accuracy:.1%}")
