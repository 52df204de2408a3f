"""Measures what docs/results/uplift.md says, and writes that page.

    python -m benchmarks.methods.uplift HAR.npz

Does a federation of 21 persons' phones help?  HAR.npz: UCI HAR (Anguita et al. 2013) with x_train, y_train, user_train,
x_test and y_test; windows are (128, 9).  Each person is a device.  Every second window is used, so that no two of them
share measurements, and a quarter of a person's windows is that person's own held-out part.  A few minutes of CPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import edge_sim
from coordinator.results.figures.outcome import versions
from coordinator.results.figures.result import Result
from edge_sim.config.settings import parse

PAGE = Path(__file__).parents[2] / "docs" / "results" / "uplift.md"
SEEDS = (0, 1, 2)
ROUNDS, PERSONS, SHARE = 40, 21, 0.25
PLANS = (("the whole run", ROUNDS), ("10 rounds", 10))
"""How long a control group stays: its name, and rounds."""
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (("fedavg", {}),)


def main(path: Path) -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as folder:
        thinned = _thinned(path, Path(folder) / "har.npz")
        rows = [_row(thinned, method, given, seed) for method, given in RUNS for seed in SEEDS]
    PAGE.write_text(_page(rows), encoding="utf-8")


def _thinned(path: Path, to: Path) -> Path:
    """Write every second window of each person, in their order in time."""
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    kept = np.zeros(len(arrays["user_train"]), np.bool_)
    for user in np.unique(arrays["user_train"]):
        kept[np.flatnonzero(arrays["user_train"] == user)[::2]] = True
    np.savez(to, **{name: each[kept] if name.endswith("_train") else each for name, each in arrays.items()})
    return to


def _row(data: Path, method: str, given: dict[str, Any], seed: int) -> list[str]:
    """A row: method, seed, the uplift by each plan, and what a run of all devices alone tells."""
    cells = [method, str(seed)]
    for _, rounds in PLANS:
        cells.append(_said(_run(data, method, given, seed, control=SHARE, control_rounds=rounds)))
    whole = _run(data, method, given, seed, standalone="matched")
    now, alone = (whole.metrics[f"{name}local_accuracy_mean"] for name in ("", "standalone_"))
    cells.append(f"{alone:.1%} -> {now:.1%} ({100 * (now - alone):+.1f})")
    print(cells, flush=True)
    return cells


def _run(
    data: Path, method: str, given: dict[str, Any], seed: int, *, standalone: object = False, **more: Any
) -> Result:
    federation = {
        "name": "har",
        "method": method,
        "rounds": ROUNDS,
        "devices": PERSONS,
        "seed": seed,
        "feature_dim": 64,
    }
    tables = {
        "federation": {**federation, **more},
        "method": given,
        "train": {"batch_size": 16, "local_steps": 5, "learning_rate": 0.03, "evaluate_every": 5},
        "data": {"source": "npz", "path": str(data), "normalise": "fit", "split": [3, 0, 1]},
        "partition": {"kind": "user"},
        "fleet": [{"count": PERSONS, "model": "mlp"}],
        "run": {"standalone": standalone},
    }
    result = edge_sim.run(parse(tables, Path("har.toml")))
    if not result.completed:
        raise SystemExit(f"{method}, seed {seed}: {result.reason}")
    return result


def _said(result: Result) -> str:
    found = result.uplift
    if "mean" not in found:
        return str(found["text"])
    low, mean, high = (100 * found[name] for name in ("low", "mean", "high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _page(rows: Sequence[Sequence[str]]) -> str:
    software = ", ".join(f"{package} {version}" for package, version in versions().items())
    heads = ["method", "seed", *(f"uplift, a group for {name}" for name, _ in PLANS), "all alone -> all federated"]
    lines = [
        "# The uplift of 21 persons' phones",
        "",
        "Written by `python -m benchmarks.methods.uplift HAR.npz`; nothing here is typed by hand.",
        f"UCI HAR by person (Anguita et al. 2013): {PERSONS} devices, mlp on windows of 128 x 9, {ROUNDS} rounds of 5",
        f"steps, `[federation] control = {SHARE}`.  Accuracy on each person's own held-out windows, in points; the",
        "95 % interval of the uplift in brackets.  The last column is not available in a deployment: the same",
        "devices and private steps twice, all of them alone and all of them together.",
        "",
        *("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)),
        "",
        "A fixed group shows the whole effect of the federation. A changing one shows what a device loses, or gains",
        "again, within 10 rounds. Its interval is narrower, because each device is compared with itself.",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.uname().machine}, {os.cpu_count()} cores; {software}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
