"""Accuracy of honest devices under attacks, by share of malicious devices and by how uploads are combined.

    python -m benchmarks.methods.attacks [--out DIR]

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
from benchmarks.common.points import markdown, software, written
from edge_sim.config import settings
from edge_sim.fleet import fleet

PAGE = Path(__file__).parents[2] / "docs" / "results" / "attacks.md"
SEED, ROUNDS, ROOT = 0, 15, 100
FLEETS = ((20, 0), (100, 1), (20, 1), (20, 4), (20, 8))
"""Devices, and how many of them are malicious: none, 1, 5, 20 and 40 percent."""
ATTACKS = ("flip_ten", "swap_classes", "inflate_counts", "little_is_enough", "noise", "magnify")
FEW = ("flip_ten", "inflate_counts", "swap_classes")
"""The attacks that are run at every share of malicious devices; with 100 devices the first two."""
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
    Case("fedmd", "fedmd"),
    Case("fedmd, geometric median", "fedmd", {"logits": MEDIAN}),
    Case("fedmd, root gate", "fedmd", {"logits": "root-gate"}),
)


def tables(case: Case, attack: str, devices: int, malicious: int, seed: int) -> dict[str, Any]:
    """Return the federation: digits by a Dirichlet distribution, the last devices malicious."""
    rows: list[dict[str, Any]] = [{"count": devices - malicious, "model": "softmax"}]
    if malicious:
        rows.append({"count": malicious, "model": "softmax", "byzantine": f"edge_sim.byzantine:{attack}"})
    found: dict[str, Any] = {
        "federation": {
            "name": "attacks",
            "method": case.method,
            "rounds": ROUNDS,
            "devices": devices,
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
        "partition": {"kind": "dirichlet", "alpha": 1.0, "min_samples": 4},
        "fleet": rows,
        "run": {"standalone": False},
        "robust": {"count_factor": 7.0, "hold_out_rounds": 5, **case.robust},  # as in a deployment
    }
    if case.robust.get("logits") == "root-gate":
        found["robust"]["labels"] = public_labels(found)
    return found


def public_labels(found: dict[str, Any]) -> list[int]:
    """Return the labels of the first ROOT public samples, which an operator would have given them by hand."""
    config = settings.parse({**found, "robust": {}}, Path("attacks.toml"))
    labels = fleet.build_fleet(config).dataset.public_labels
    return [] if labels is None else [int(each) for each in labels[:ROOT]]


MEASURE = {"fedavg": "global_accuracy", "fedproto": "prototype_accuracy"}
"""What is measured, where it is not the accuracy of the devices' own models."""


def measured(case: Case, attack: str, devices: int, malicious: int, folder: Path) -> float:
    """Return the mean accuracy of the honest devices at the end, in percent; run it unless the folder has it."""
    kept = folder / f"{case.name.replace(' ', '-').replace(',', '')}-{attack}-{devices}-{malicious}.json"
    if kept.exists():
        return float(json.loads(kept.read_text(encoding="utf-8")))
    result = edge_sim.run(tables(case, attack, devices, malicious, SEED))
    name = MEASURE.get(case.method, "accuracy")
    honest = result.devices[: devices - malicious]
    found = 100 * statistics.fmean(each.metrics.get(name, each.accuracy or 0.0) for each in honest)
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def by_share(folder: Path) -> str:
    """Return the table of the worst attack at each share of malicious devices."""
    rows = [["", *(f"{malicious / devices:.0%}" for devices, malicious in FLEETS)]]
    for case in CASES:
        row = [case.name]
        for devices, malicious in FLEETS:
            attacks = (FEW if devices == 20 else FEW[:2]) if malicious else FEW[:1]
            found = {each: measured(case, each, devices, malicious, folder) for each in attacks}
            worst = min(found, key=lambda each: found[each])
            row.append(f"{found[worst]:.1f}" + (f" ({worst})" if malicious else ""))
        rows.append(row)
    return markdown(rows)


def by_attack(folder: Path) -> str:
    """Return the table of all attacks with 20 percent malicious devices."""
    rows = [["", "nobody", *ATTACKS]]
    for case in CASES:
        found = [measured(case, each, 20, 4, folder) for each in ATTACKS]
        clean = measured(case, ATTACKS[0], 20, 0, folder)
        rows.append([case.name, f"{clean:.1f}", *(f"{each:.1f}" for each in found)])
    return markdown(rows)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "attacks")
    folder = parser.parse_args().out
    tables_ = f"{by_share(folder)}\n\n## All attacks, 20 % malicious\n\n{by_attack(folder)}"
    written(PAGE, f"{software()}; seed {SEED}\n\n## The worst attack\n\n{tables_}")


if __name__ == "__main__":
    main()
