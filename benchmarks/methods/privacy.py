"""Accuracy of prototypes with differential privacy by epsilon, on digits, with frozen extractors.

    python -m benchmarks.methods.privacy [--out DIR]

Writes docs/results/privacy.md.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common.points import Point, markdown, mean_and_deviation, over_seeds, software, written

PAGE = Path(__file__).parents[2] / "docs" / "results" / "privacy.md"
SEEDS = (0, 1, 2)
DEVICES = (4, 20)
EPSILONS = (0.0, 8.0, 4.0, 2.0, 1.0, 0.5)
"""0: no noise."""
EXTRACTORS = {"softmax": ("pixels", 4.0), "onnx-random": ("random filters", 8.0), "onnx-kmeans": ("k-means", 12.0)}
"""By model family: what its features are, and the median norm of those of the public samples."""


def tables(family: str, devices: int, epsilon: float) -> dict[str, Any]:
    """Return one federation of one round, whose devices have the same frozen extractor."""
    return {
        "federation": {
            "name": "privacy",
            "method": "dp_prototypes",
            "rounds": 1,
            "devices": devices,
            "feature_dim": 64,
            "start": "equal",
        },
        "method": {
            "epsilon": epsilon,
            "clip": EXTRACTORS[family][1],
            **({} if epsilon else {"without_guarantee": "tell"}),
        },
        "data": {"source": "digits", "public": 400},
        "partition": {"kind": "dirichlet", "alpha": 1.0, "min_samples": 4},
        "fleet": [{"count": devices, "model": family}],
        "run": {"standalone": False},
    }


def table(folder: Path) -> str:
    """Return the accuracies in percent, mean and deviation over seeds."""
    rows = [["extractor", "devices", *("no noise" if not each else f"epsilon {each:g}" for each in EPSILONS)]]
    for family, (name, _) in EXTRACTORS.items():
        for devices in DEVICES:
            found = [over_seeds(Point(tables(family, devices, each)), SEEDS, folder) for each in EPSILONS]
            cells = [mean_and_deviation([run["accuracy"] for run in runs]) for runs in found]
            rows.append([name, str(devices), *cells])
    return markdown(rows)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "privacy")
    folder = parser.parse_args().out
    written(PAGE, f"{software()}; seeds 0, 1, 2\n\n{table(folder)}")


if __name__ == "__main__":
    main()
