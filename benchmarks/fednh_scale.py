"""FedNH's scale, its start and the gradient clip, on three data sets: where training collapses, and what prevents it.

    python -m benchmarks.fednh_scale --data DIR [--out DIR]

DIR holds fmnist.npz and cifar10.npz: x_train, y_train, x_test, y_test as uint8.  Writes docs/results/fednh-scale.md.
What --out holds already is not run again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.points import Figures, Point, markdown, mean_and_deviation, over_seeds, software, written
from coordinator.record.result import Result

PAGE = Path(__file__).parents[1] / "docs" / "results" / "fednh-scale.md"
SEEDS = (0, 1)
DEVICES = 5
SETS: tuple[tuple[str, str, int, Mapping[str, Any]], ...] = (
    ("digits", "mlp", 40, {"source": "digits", "public": 0}),
    ("fmnist", "cnn", 15, {"source": "npz", "path": "fmnist.npz", "train_samples": 1500, "test_samples": 1000}),
    ("cifar10", "cnn", 15, {"source": "npz", "path": "cifar10.npz", "train_samples": 1500, "test_samples": 1000}),
)
"""Name, model family, rounds and [data] of each set."""
CLIP = {"clip_norm": 10.0}
SETTINGS: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    ("`scale = 20`", {"scale": 20.0}, {}),
    ("`scale = 20`, clip 10", {"scale": 20.0}, CLIP),
    ("`scale = 5`", {"scale": 5.0}, {}),
    ("`scale = 1`", {"scale": 1.0}, {}),
    ("`scale = 20`, `warm_rounds = 10`", {"scale": 20.0, "warm_rounds": 10}, {}),
    ("`scale = 20`, `warm_rounds = 10`, clip 10", {"scale": 20.0, "warm_rounds": 10}, CLIP),
)
"""Name, [method] and what [train] has besides."""


def point(name: str, method: str, params: Mapping[str, Any], train: Mapping[str, Any], data: Path) -> Point:
    """Return the federation of a method on a data set, with the optimiser of FedNH's paper."""
    model, rounds, table = next((model, rounds, table) for known, model, rounds, table in SETS if known == name)
    source = {**table, "path": str(data / str(table["path"]))} if "path" in table else dict(table)
    steps = {"optimiser": "sgd", "learning_rate": 0.01, "momentum": 0.9, "batch_size": 64, "local_epochs": 2}
    return Point(
        {
            "federation": {
                "name": "scale",
                "method": method,
                "rounds": rounds,
                "devices": DEVICES,
                "feature_dim": 64,
            },
            "method": dict(params),
            "train": {**steps, "evaluate_every": rounds, **train},
            "data": {"public": 0, **source},
            "partition": {"kind": "dirichlet", "alpha": 0.3},
            "fleet": [{"count": DEVICES, "model": model}],
            "run": {"standalone": False},
        }
    )


def warned(result: Result) -> Figures:
    """Return which of the warnings about a collapse a run gave."""
    return {word: float(any(text.startswith(word) for text in result.warnings)) for word in ("W21", "W20")}


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs") / "fednh-scale")
    asked = parser.parse_args()
    averaged = {name: _found(name, "fedavg", {}, {}, asked) for name, *_ in SETS}
    rows = [["setting", *(name for name, *_ in SETS), "mean gain over fedavg", "runs warned of"]]
    rows.append(["fedavg", *(mean_and_deviation(_accuracies(found)) for found in averaged.values()), "", ""])
    for label, params, train in SETTINGS:
        found = {name: _found(name, "fednh", params, train, asked) for name, *_ in SETS}
        cells = [mean_and_deviation(_accuracies(each)) for each in found.values()]
        gains = [
            100 * (statistics.fmean(_accuracies(found[name])) - statistics.fmean(_accuracies(averaged[name])))
            for name in found
        ]
        warnings = sum(bool(each["W21"] or each["W20"]) for runs in found.values() for each in runs)
        rows.append([label, *cells, f"{statistics.fmean(gains):+.1f}", f"{warnings} of {len(SETS) * len(SEEDS)}"])
        print(rows[-1], flush=True)
    written(PAGE, "\n\n".join([markdown(rows), software()]))


def _found(
    name: str, method: str, params: Mapping[str, Any], train: Mapping[str, Any], asked: argparse.Namespace
) -> list[Figures]:
    return over_seeds(point(name, method, params, train, asked.data), SEEDS, asked.out, warned)


def _accuracies(found: Sequence[Figures]) -> list[float]:
    return [each["accuracy"] for each in found]


if __name__ == "__main__":
    main()
