"""Accuracy over virtual time of rounds, and of buffers that do not wait for stragglers.

    python -m benchmarks.methods.asynchronous [--out DIR] [--methods fedavg,fedproto]

Writes docs/results/asynchronous.md.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.common.points import markdown, mean_and_deviation, software, written
from coordinator.ledger import Ledger
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.fleet import fleet

PAGE = Path(__file__).parents[2] / "docs" / "results" / "asynchronous.md"
SEEDS = (0, 1, 2)
DEVICES, ROUNDS, BUFFER, FIRST = 20, 20, 5, 12
VERSIONS = 6 * ROUNDS
"""Half as many uploads again as the rounds have, which take less than .7 of their time with stragglers."""
SLOW = (0.0, 0.1, 0.3)
"""Shares of straggling exchanges; each takes ten times as long."""
WINDOW = 3
"""Points of a curve that are averaged, so that one lucky version does not count as reaching the target."""
PARAMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedproto": {},
    "fedmd": {"form": "digest", "align": 200},
    "fedssa": {},
}
GLOBAL = frozenset({"fedavg"})
"""Methods whose shared model is measured; of the others the devices' own models are, on the whole test."""


@dataclass(frozen=True)
class Curve:
    """Mean accuracy of all devices over virtual time."""

    at_s: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def smooth(self) -> list[float]:
        """The mean of each point and the ones just before it."""
        values = self.accuracy
        return [statistics.fmean(values[max(0, at + 1 - WINDOW) : at + 1]) for at in range(len(values))]

    def reached_s(self, target: float) -> float | None:
        """Virtual seconds until the target is reached, or None if it never is."""
        return next((at_s for at_s, found in zip(self.at_s, self.smooth, strict=True) if found >= target), None)

    def by(self, at_s: float) -> float:
        """Return the accuracy at a time."""
        found = [value for each_s, value in zip(self.at_s, self.smooth, strict=True) if each_s <= at_s]
        return found[-1] if found else 0.0


HOW: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": ROUNDS},
    "buffer": {"rounds": VERSIONS, "buffer": BUFFER},
    "first": {"rounds": 3 * ROUNDS, "participants": FIRST, "over_selection": True},
}
"""Rounds that wait for all, buffers, and rounds of some drawn devices, which wait for all of these."""
EVERY = {"rounds": 1, "buffer": VERSIONS // ROUNDS, "first": 3}
"""How often devices are measured."""


def tables(method: str, slow: float, seed: int, how: str) -> dict[str, Any]:
    """Return the federation: digits by a Dirichlet distribution, every device sometimes a straggler."""
    return {
        "federation": {
            "name": "asynchronous",
            "method": method,
            "devices": DEVICES,
            "seed": seed,
            "feature_dim": 64,
            "deadline_s": 1e6,
            **HOW[how],
        },
        "method": PARAMS[method],
        "train": {
            "optimiser": "sgd",
            "learning_rate": 0.05,
            "batch_size": 16,
            "local_steps": 10,
            "evaluate_every": EVERY[how],
        },
        "data": {"source": "digits", "public": 200},
        "partition": {"kind": "dirichlet", "alpha": 0.3, "min_samples": 4},
        "fleet": [
            {
                "count": DEVICES,
                "model": "mlp",
                "board": "rpi-zero-2w",
                "link": "ethernet",
                "slow_share": slow,
                "slow_factor": 10.0,
            }
        ],
        "run": {"standalone": False},
    }


def curve(method: str, slow: float, seed: int, folder: Path, how: str) -> Curve:
    """Return the curve of a run; run it unless the folder has it."""
    kept = folder / f"{method}-{slow:g}-{seed}-{how}.json"
    if not kept.exists():
        config = settings.parse(tables(method, slow, seed, how), Path("asynchronous.toml"))
        run = VirtualFleet(fleet.build_fleet(config), ledger=Ledger(None))
        run.run()
        record = run.server.record
        measured = record.global_accuracy if method in GLOBAL else record.accuracy
        ends_s = list(accumulate(entry.wall_s for entry in record.rounds))
        points = [(ends_s[at - 1], statistics.fmean(found.values())) for at, found in sorted(measured.items()) if at]
        run.close()
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(points), encoding="utf-8")
    points = json.loads(kept.read_text(encoding="utf-8"))
    return Curve(tuple(at_s for at_s, _ in points), tuple(found for _, found in points))


def row(method: str, slow: float, folder: Path) -> list[str]:
    """Compare rounds with buffers: the time to the rounds' last accuracy, and the accuracy in .7 of their time."""
    targets: list[float] = []
    sooner: dict[str, list[float]] = {"buffer": [], "first": []}
    ratios: dict[str, list[str]] = {"buffer": [], "first": []}
    for seed in SEEDS:
        rounds = curve(method, slow, seed, folder, "rounds")
        target = rounds.smooth[-1]
        targets.append(target)
        for how, found in sooner.items():
            other = curve(method, slow, seed, folder, how)
            found.append(other.by(0.7 * rounds.at_s[-1]))
            ratios[how].append(_ratio(other.reached_s(target), rounds.reached_s(target)))
    both = [cell for how in sooner for cell in (mean_and_deviation(sooner[how]), ", ".join(ratios[how]))]
    return [method, f"{slow:.0%}", mean_and_deviation(targets), *both]


def _ratio(reached_s: float | None, rounds_s: float | None) -> str:
    return "not reached" if reached_s is None or rounds_s is None else f"{reached_s / rounds_s:.2f}"


def table(methods: Sequence[str], folder: Path) -> str:
    """Return the table of all methods and shares of stragglers."""
    head = ["method", "stragglers", "rounds, in the end"]
    head += ["buffers, in .7 of that time", "share of the time to the same accuracy, by seed"]
    head += [f"rounds of {FIRST} drawn devices, in .7 of that time", "share of the time to the same, by seed"]
    return markdown([head, *(row(method, slow, folder) for method in methods for slow in SLOW)])


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "asynchronous")
    parser.add_argument("--methods", default=",".join(PARAMS))
    chosen = parser.parse_args()
    written(PAGE, f"{software()}\n\n{table(chosen.methods.split(','), chosen.out)}")


if __name__ == "__main__":
    main()
