"""Measures what docs/results/local-accuracy.md says, and writes that page.

    python -m benchmarks.methods.local_accuracy

Accuracy on the test samples of the classes that a device holds: what methods that serve each device's own task are
judged by.  Every federated run is compared with the same devices, seeds and private steps without any exchange.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import edge_sim
from coordinator.config import load_toml
from coordinator.results.figures.outcome import versions
from coordinator.results.report.summary import summary
from edge_sim.config.settings import parse

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "edge_sim" / "demo.toml"
PAGE = ROOT / "docs" / "results" / "local-accuracy.md"
SEEDS = (0, 1, 2)
METHODS = ("fedproto", "fedssa")
SGD = ("train.optimiser=sgd", "train.learning_rate=0.05")

SETTINGS: tuple[tuple[str, str, int, Sequence[str]], ...] = (
    ("five architectures", "", 3, ()),
    ("five architectures, SGD 0.05", "", 3, SGD),
    ("ten mlp", "mlp", 3, ()),
    ("ten mlp", "mlp", 5, ()),
    ("ten softmax on the pixels", "softmax", 3, ()),
    ("ten softmax on the pixels", "softmax", 5, ()),
)
"""Name, the one family of all devices (empty: the demo's fleet), classes on each device, overrides."""


def main() -> None:
    """Measure and write."""
    head = ["fleet", "classes per device", "method", "alone", "federated", "gain in points", "by prototypes"]
    rows = [head, ["---"] * len(head)]
    for name, family, held, overrides in SETTINGS:
        for method in METHODS:
            held_classes = f"partition.classes_per_device={held}"
            rows.append([name, str(held), method, *measured(method, family, (held_classes, *overrides))])
            print(rows[-1], flush=True)
    PAGE.write_text(_page(rows))


def measured(method: str, family: str, overrides: Sequence[str]) -> list[str]:
    """Return a row: alone, federated, gains, by prototypes.  family: of all devices, or empty for the demo's fleet."""
    found = [_run(method, family, [*overrides, f"federation.seed={seed}"]) for seed in SEEDS]
    alone = [metrics["standalone_local_accuracy_mean"] for metrics in found]
    federated = [metrics["local_accuracy_mean"] for metrics in found]
    prototypes = [metrics["prototype_accuracy_mean"] for metrics in found if "prototype_accuracy_mean" in metrics]
    gains = [100 * (after - before) for after, before in zip(federated, alone, strict=True)]
    gain = f"{statistics.fmean(gains):+.1f} ± {statistics.stdev(gains):.1f}"
    return [_percent(alone), _percent(federated), gain, _percent(prototypes)]


def _run(method: str, family: str, overrides: Sequence[str]) -> dict[str, float]:
    settings = (
        f"federation.method={method}",
        "federation.rounds=40",
        "federation.feature_dim=64",
        "train.evaluate_every=40",
    )
    tables: dict[str, Any] = load_toml(DEMO, [*settings, *overrides])
    if family:
        tables["fleet"] = [{"count": tables["federation"]["devices"], "model": family}]
    metrics: dict[str, float] = summary(edge_sim.run(parse(tables, DEMO)))["metrics"]
    return metrics


def _percent(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1%} ± {100 * statistics.stdev(values):.1f}" if values else ""


def _page(rows: Sequence[Sequence[str]]) -> str:
    software = ", ".join(f"{package} {version}" for package, version in versions().items())
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    lines = [
        "# Accuracy on a device's own classes",
        "",
        "Written by `python -m benchmarks.methods.local_accuracy`; nothing here is typed by hand.",
        "The digits, ten devices, 64",
        "features, 40 rounds of 5 steps; `edge_sim/demo.toml` for the rest. Mean ± standard deviation over 3 seeds;",
        "the gain is that of each seed over the same devices trained alone. The pages of the methods interpret the",
        "figures: [fedproto](../reference/methods/fedproto.md), [fedssa](../reference/methods/fedssa.md).",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"{date}, {os.cpu_count()} cores; {software}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
