"""Measures accuracy and bytes for each encoding, and writes docs/results/encodings.json.

    python -m benchmarks.messages.encoding_costs [--rounds 40]

The demo's federation with every payload kind of the method in one encoding; the same seeds, data and private steps
throughout.  `table` turns what was measured into markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import edge_sim
from coordinator.config import load_toml
from coordinator.results.figures.outcome import versions
from coordinator.results.report.summary import summary
from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import EncodingSpec, Upload
from edge_sdk.protocol.transforms import Coding
from edge_sim.config.settings import parse

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "edge_sim" / "demo.toml"
FIGURES = ROOT / "docs" / "results" / "encodings.json"
SEEDS = (0, 1, 2)
KINDS: Mapping[str, Sequence[str]] = {
    "fedmd": ("logits",),
    "fedal": ("logits", "logit_gradients"),
    "fedproto": ("class_rows",),
}
"""The payload kinds that each method exchanges."""
JUDGED_BY: Mapping[str, str] = {"fedproto": "local_accuracy_mean"}
"""The metric of a method that serves a device's own classes; the others are judged on all ten digits."""


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds: int = parser.parse_args().rounds
    figures: dict[str, Any] = {
        "command": f"python -m benchmarks.messages.encoding_costs --rounds {rounds}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "versions": versions(),
        "rounds": rounds,
        "seeds": list(SEEDS),
        "frame_bytes": frame_bytes(),
        "runs": [],
    }
    for method in KINDS:
        for encoding in ENCODINGS:
            for seed in SEEDS:
                figures["runs"].append(_run(method, encoding, seed, rounds))
                FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
            print(method, encoding, [run["accuracy"] for run in figures["runs"][-len(SEEDS) :]], flush=True)
    print("\n".join(table(figures)))


def frame_bytes() -> dict[str, int]:
    """Return the bytes of an Upload frame with logits of 1000 samples and 10 classes, by encoding."""
    values = np.random.default_rng(0).normal(0, 5, (1000, 10)).astype(np.float32)
    found = {}
    for name in ENCODINGS:
        knowledge = Coding(EncodingSpec(logits=name)).apply({"logits": PublicLogits(values=values, batch=bytes(8))})
        upload = Upload(federation="lab", device="cam-07", round=0, exchange=0, knowledge=knowledge)
        found[name] = len(codec.encode(upload))
    return found


def _run(method: str, encoding: str, seed: int, rounds: int) -> dict[str, Any]:
    settings = [
        f"federation.method={method}",
        f"federation.rounds={rounds}",
        f"federation.seed={seed}",
        "federation.feature_dim=64",
        f"train.evaluate_every={rounds}",
        "run.standalone=false",
        *(f"encoding.{kind}={encoding}" for kind in KINDS[method]),
    ]
    told = summary(edge_sim.run(parse(load_toml(DEMO, settings), DEMO)))
    metric = JUDGED_BY.get(method)
    return {
        "method": method,
        "encoding": encoding,
        "seed": seed,
        "accuracy": told["metrics"][metric] if metric else told.get("global_model", told)["accuracy"]["mean"],
        "up_bytes": told["bytes"]["up_per_device_round"],
        "down_bytes": told["bytes"]["down_per_device_round"],
    }


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines of a markdown table: mean ± standard deviation over seeds; bytes of all whole frames."""
    head = ["method", "encoding", "accuracy", "against f32, points", "up, B", "down, B", "up against f32"]
    rows = [head, ["---"] * len(head)]
    runs: Sequence[Mapping[str, Any]] = figures["runs"]
    for method in KINDS:
        plain = [run for run in runs if run["method"] == method and run["encoding"] == DEFAULT_ENCODING]
        for encoding in ENCODINGS:
            mine = [run for run in runs if run["method"] == method and run["encoding"] == encoding]
            rows.append([method, encoding, *_cells(mine, plain)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(mine: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]]) -> list[str]:
    accuracy = [100 * run["accuracy"] for run in mine]
    gains = [100 * (run["accuracy"] - base["accuracy"]) for run, base in zip(mine, plain, strict=True)]
    up, down = (statistics.fmean(run[way] for run in mine) for way in ("up_bytes", "down_bytes"))
    share = up / statistics.fmean(run["up_bytes"] for run in plain)
    return [
        f"{statistics.fmean(accuracy):.1f} % ± {statistics.stdev(accuracy):.1f}",
        f"{statistics.fmean(gains):+.1f} ± {statistics.stdev(gains):.1f}",
        f"{up:,.0f}",
        f"{down:,.0f}",
        f"{share:.2f}",
    ]


if __name__ == "__main__":
    main()
