"""FedNH's scale, its start and the gradient clip, on three data sets: where training collapses, and what prevents it.

    python -m benchmarks.methods.fednh_scale --data DIR [--out DIR]

DIR holds fmnist.npz and cifar10.npz: x_train, y_train, x_test, y_test as uint8.  Of each, 1,500 pictures to train on
and 1,000 to test are drawn, each class alike.  Writes docs/results/fednh-scale.md.  What --out holds already is not run
again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.points import Figures, Point, markdown, mean_and_deviation, over_seeds, software, written
from coordinator.results.figures.result import Result

PAGE = Path(__file__).parents[2] / "docs" / "results" / "fednh-scale.md"
SEEDS = (0, 1)
DEVICES = 5
SETS: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
    ("digits", 40, {"source": "digits"}),
    ("fmnist", 20, {"source": "npz", "path": "fmnist.npz"}),
    ("cifar10", 20, {"source": "npz", "path": "cifar10.npz"}),
)
"""Name, rounds and [data] of each set."""
COLUMNS = (("digits", 0.01), ("digits", 0.1), ("fmnist", 0.01), ("cifar10", 0.01))
"""Data set, and rate of SGD with momentum .9; the paper's is .01."""
CLIP = {"clip_norm": 10.0}
SETTINGS: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    ("`scale = 20`", {"scale": 20.0, "warm_rounds": 0}, {}),
    ("`scale = 20`, clip 10", {"scale": 20.0, "warm_rounds": 0}, CLIP),
    ("`scale = 1`", {"scale": 1.0, "warm_rounds": 0}, {}),
    ("`scale = 20`, `warm_rounds = 10`", {"scale": 20.0, "warm_rounds": 10}, {}),
    ("`scale = 20`, `warm_rounds = 10`, clip 10", {"scale": 20.0, "warm_rounds": 10}, CLIP),
)
"""Name, [method] and what [train] has besides."""


def point(
    column: tuple[str, float], method: str, params: Mapping[str, Any], train: Mapping[str, Any], data: Path
) -> Point:
    """Return the federation of a method on a data set, with the optimiser of FedNH's paper at some rate."""
    name, rate = column
    rounds, table = next((rounds, table) for known, rounds, table in SETS if known == name)
    source = {**table, "path": str(data / str(table["path"]))} if "path" in table else dict(table)
    steps = {"optimiser": "sgd", "learning_rate": rate, "momentum": 0.9, "batch_size": 64, "local_epochs": 2}
    return Point(
        {
            "federation": {
                "name": "scale",
                "method": method,
                "rounds": rounds,
                "devices": DEVICES,
                "start": "own",
                "feature_dim": 64,
            },
            "method": dict(params),
            "train": {**steps, "evaluate_every": rounds, **train},
            "data": {"public": 0, **source},
            "partition": {"kind": "dirichlet", "alpha": 0.3},
            "fleet": [{"count": DEVICES, "model": "mlp"}],
            "run": {"standalone": False},
        }
    )


def reduced(full: Path, out: Path) -> Path:
    """Write a part of each npz file to a folder of `out`, and return the folder."""
    small = out / "data"
    small.mkdir(parents=True, exist_ok=True)
    for name in [str(table["path"]) for *_, table in SETS if "path" in table]:
        if not (small / name).exists():
            rng, parts = np.random.default_rng(0), {}
            with np.load(full / name) as arrays:
                everything = dict(arrays)
            for part, each in (("train", 150), ("test", 100)):
                y = everything[f"y_{part}"].reshape(-1)
                drawn = [rng.permutation(np.flatnonzero(y == label))[:each] for label in range(10)]
                chosen = rng.permutation(np.concatenate(drawn))
                parts |= {f"x_{part}": everything[f"x_{part}"][chosen], f"y_{part}": y[chosen]}
            np.savez(small / name, **parts)
    return small


def warned(result: Result) -> Figures:
    """Return which of the warnings about a collapse a run gave."""
    return {word: float(any(text.startswith(word) for text in result.warnings)) for word in ("W21", "W20")}


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs") / "fednh-scale")
    asked = parser.parse_args()
    asked.data = reduced(asked.data, asked.out)
    averaged = [_found(column, "fedavg", {}, {}, asked) for column in COLUMNS]
    rows = [["setting", *(f"{name}, {rate:g}" for name, rate in COLUMNS), "mean gain over fedavg", "runs warned of"]]
    rows.append(["fedavg", *(mean_and_deviation(_accuracies(found)) for found in averaged), "", ""])
    for label, params, train in SETTINGS:
        found = [_found(column, "fednh", params, train, asked) for column in COLUMNS]
        gains = [
            100 * (statistics.fmean(_accuracies(after)) - statistics.fmean(_accuracies(before)))
            for after, before in zip(found, averaged, strict=True)
        ]
        warnings = sum(bool(each["W20"] or each["W21"]) for runs in found for each in runs)
        cells = [mean_and_deviation(_accuracies(each)) for each in found]
        rows.append([label, *cells, f"{statistics.fmean(gains):+.1f}", f"{warnings} of {len(COLUMNS) * len(SEEDS)}"])
        print(rows[-1], flush=True)
    written(PAGE, "\n\n".join([markdown(rows), software()]))


def _found(
    column: tuple[str, float],
    method: str,
    params: Mapping[str, Any],
    train: Mapping[str, Any],
    asked: argparse.Namespace,
) -> list[Figures]:
    return over_seeds(point(column, method, params, train, asked.data), SEEDS, asked.out, warned)


def _accuracies(found: Sequence[Figures]) -> list[float]:
    return [each["global"] for each in found]


if __name__ == "__main__":
    main()
