"""Accuracy of honest devices under attacks, by share of malicious devices and by how uploads are combined.

    python -m benchmarks.attacks [--out DIR] [--seeds 0,1]

Writes docs/results/attacks.md.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edge_sim
from benchmarks.points import software
from edge_sim.config import settings
from edge_sim.fleet import fleet

PAGE = Path(__file__).parents[1] / "docs" / "results" / "attacks.md"
DEVICES, ROUNDS, ROOT = 20, 15, 100
SHARES = (0.0, 0.01, 0.05, 0.2, 0.4)
ATTACKS = ("flip_ten", "swap_classes", "inflate_counts", "little_is_enough", "noise", "magnify")
OFF: Mapping[str, Any] = {"count_factor": 0, "hold_out_rounds": 0}
"""The papers' means, as they were before there was a section [robust]."""


@dataclass(frozen=True)
class Case:
    """A method with one way to combine uploads."""

    name: str
    method: str
    robust: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


MEDIAN = "geometric-median"
CASES = (
    Case("fedavg, believed", "fedavg", OFF),
    Case("fedavg", "fedavg"),
    Case("fedproto, believed", "fedproto", OFF),
    Case("fedproto", "fedproto"),
    Case("fedproto, geometric median", "fedproto", {"rows": MEDIAN}),
    Case("fedssa", "fedssa"),
    Case("fedssa, geometric median", "fedssa", {"rows": MEDIAN}),
    Case("fedmd, believed", "fedmd", OFF),
    Case("fedmd", "fedmd"),
    Case("fedmd, geometric median", "fedmd", {"logits": MEDIAN}),
    Case("fedmd, root gate", "fedmd", {"logits": "root-gate"}),
)


def tables(case: Case, attack: str, malicious: int, seed: int) -> dict[str, Any]:
    """Return the federation: digits by a Dirichlet distribution, the last devices malicious."""
    rows: list[dict[str, Any]] = [{"count": DEVICES - malicious, "model": "mlp"}]
    if malicious:
        rows.append({"count": malicious, "model": "mlp", "byzantine": f"edge_sim.byzantine:{attack}"})
    found: dict[str, Any] = {
        "federation": {
            "name": "attacks",
            "method": case.method,
            "rounds": ROUNDS,
            "devices": DEVICES,
            "seed": seed,
            "feature_dim": 64,
        },
        "method": {**case.params},
        "train": {
            "optimiser": "sgd",
            "learning_rate": 0.1,
            "batch_size": 32,
            "local_steps": 5,
            "evaluate_every": ROUNDS,
        },
        "partition": {"kind": "dirichlet", "alpha": 1.0, "min_samples": 8},
        "fleet": rows,
        "run": {"standalone": False},
        "robust": {**case.robust},
    }
    if case.robust.get("logits") == "root-gate":
        found["robust"]["labels"] = public_labels(found)
    return found


def public_labels(found: dict[str, Any]) -> list[int]:
    """Return the labels of the first ROOT public samples, which an operator would have given them by hand."""
    return fleet.public_labels(settings.parse({**found, "robust": {}}, Path("attacks.toml")))[:ROOT]


def measured(case: Case, attack: str, malicious: int, seed: int, folder: Path) -> float:
    """Return the mean accuracy of the honest devices at the end, in percent; run it unless the folder has it."""
    kept = folder / f"{case.name.replace(' ', '-').replace(',', '')}-{attack}-{malicious}-{seed}.json"
    if kept.exists():
        return float(json.loads(kept.read_text()))
    result = edge_sim.run(tables(case, attack, malicious, seed))
    name = "global_accuracy" if case.method == "fedavg" else "accuracy"
    honest = result.devices[: DEVICES - malicious]
    values = [each.metrics[name] if name in each.metrics else each.accuracy or 0.0 for each in honest]
    found = 100 * statistics.mean(values)
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found
