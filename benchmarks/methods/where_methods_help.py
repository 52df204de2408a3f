"""Where methods without weights help: FedProto, FedSSA and FedHKD without weights against training alone.

    python -m benchmarks.methods.where_methods_help [--out DIR]

Writes docs/results/where-methods-help.md.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.points import Figures, Point, markdown, mean_and_deviation, over_seeds, software, written

PAGE = Path(__file__).parents[2] / "docs" / "results" / "where-methods-help.md"
SEEDS = (0, 1, 2)
SGD = {"optimiser": "sgd", "learning_rate": 0.1, "batch_size": 32, "local_steps": 5}
ADAM = {"optimiser": "adam", "learning_rate": 1e-3, "batch_size": 32, "local_steps": 5}
MOMENTUM = {**SGD, "learning_rate": 0.01, "momentum": 0.9}
SKEWED = {"kind": "dirichlet", "alpha": 0.5}
TWO, THREE = ({"kind": "classes_per_device", "classes_per_device": each} for each in (2, 3))


@dataclass(frozen=True)
class Setting:
    """One federation of digits under which all methods are compared."""

    name: str
    rounds: int
    train: Mapping[str, Any]
    partition: Mapping[str, Any] = field(default_factory=lambda: SKEWED)
    devices: int = 8
    model: str = "mlp"


SETTINGS = (
    Setting("Dirichlet .5, SGD .1, 40 rounds", 40, SGD),
    Setting("Dirichlet .5, SGD .1, 200 rounds", 200, SGD),
    Setting("Dirichlet .5, Adam .001, 40 rounds", 40, ADAM),
    Setting("10 devices of 2 classes, SGD .01 with momentum .9, 100 rounds", 100, MOMENTUM, TWO, 10),
    Setting("10 devices of 3 classes, the pixels as features, SGD .1, 40 rounds", 40, SGD, THREE, 10, "softmax"),
)
METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(("fedproto", {"mse_weight": each}) for each in (0.1, 1.0, 10.0)),
    *(("fedssa", {"mu0": mu0, "t_stable": stable}) for mu0, stable in ((0.5, 2), (0.5, 45), (0.0, 2))),
    *(("fedhkd", {"share_weights": False, "soft_weight": each, "feature_weight": each}) for each in (0.05, 0.5)),
)


def point(setting: Setting, method: str, params: Mapping[str, Any]) -> Point:
    """Return the federation of a method under a setting."""
    return Point(
        {
            "federation": {
                "name": "help",
                "method": method,
                "rounds": setting.rounds,
                "devices": setting.devices,
                "feature_dim": 64,
            },
            "method": dict(params),
            "train": {**setting.train, "evaluate_every": setting.rounds},
            "data": {"source": "digits", "public": 400},
            "partition": dict(setting.partition),
            "fleet": [{"count": setting.devices, "model": setting.model}],
            "run": {"standalone": False},
        }
    )


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "where-methods-help")
    out = parser.parse_args().out
    parts = [_part(setting, out) for setting in SETTINGS]
    written(PAGE, "\n\n".join([*parts, software()]))


def _part(setting: Setting, out: Path) -> str:
    """Return a heading and the table of one setting."""
    alone = over_seeds(point(setting, "local", {}), SEEDS, out)
    rows = [["method", "all classes", "gain", "own classes", "gain"]]
    rows.append(["alone", _share(alone, "accuracy"), "", _share(alone, "local_accuracy_mean"), ""])
    for method, params in METHODS:
        found = over_seeds(point(setting, method, params), SEEDS, out)
        told = ", ".join(f"`{key} = {value:g}`" for key, value in params.items() if not isinstance(value, bool))
        cells = [_share(found, "accuracy"), _gain(found, alone, "accuracy")]
        cells += [_share(found, "local_accuracy_mean"), _gain(found, alone, "local_accuracy_mean")]
        rows.append([f"{method}, {told}", *cells])
        print(setting.name, rows[-1], flush=True)
    return f"## {setting.name}\n\n{markdown(rows)}"


def _share(found: list[Figures], name: str) -> str:
    return mean_and_deviation([each[name] for each in found])


def _gain(found: list[Figures], alone: list[Figures], name: str) -> str:
    gains = [each[name] - before[name] for each, before in zip(found, alone, strict=True)]
    return mean_and_deviation(gains, sign=True)


if __name__ == "__main__":
    main()
