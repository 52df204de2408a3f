"""FedAL's discriminator on digits: how strong it may be, against FedMD-LF, which is FedAL without it.

    python -m benchmarks.methods.fedal_discriminator [--out DIR]

Writes docs/results/fedal-discriminator.md.  What DIR holds already is not run again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.points import Figures, Point, markdown, mean_and_deviation, over_seeds, software, written

PAGE = Path(__file__).parents[2] / "docs" / "results" / "fedal-discriminator.md"
SEEDS, OTHERS = (0, 1, 2), (3, 4, 5)
"""Seeds of the sweep, and seeds that nothing was chosen by."""
ROUNDS, DEVICES = 60, 8
ADAM = {"discriminator_optimiser": "adam"}
SETTINGS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("paper: SGD 1e-4", {"preset": "paper"}),
    ("SGD 1e-2", {"discriminator_optimiser": "sgd", "discriminator_rate": 1e-2}),
    *((f"Adam {rate:g}", {**ADAM, "discriminator_rate": rate}) for rate in (1e-4, 3e-4, 1e-3)),
    ("Adam 1e-3, weight .1", {**ADAM, "discriminator_rate": 1e-3, "adversarial": 0.1}),
    ("Adam 1e-3, weight 5", {**ADAM, "discriminator_rate": 1e-3, "adversarial": 5.0}),
    *(
        (f"Adam 1e-3, ratio held at {ratio:g}", {**ADAM, "discriminator_rate": 1e-3, "held_ratio": ratio})
        for ratio in (0.1, 0.3)
    ),
    (
        "Adam 1e-3 falling to 0, ratio held at 0.1",
        {**ADAM, "discriminator_rate": 1e-3, "held_ratio": 0.1, "discriminator_schedule": "cosine"},
    ),
)
AGAIN = ("Adam 0.0003", "Adam 1e-3, ratio held at 0.1")
"""Settings that are run under the other seeds, too."""


def point(method: str, params: Mapping[str, Any]) -> Point:
    """Return the federation of a method."""
    own = {"max_devices": DEVICES, **params} if method == "fedal" else {}
    return Point(
        {
            "federation": {"name": "adversary", "method": method, "rounds": ROUNDS, "devices": DEVICES, "start": "own"},
            "method": {"tau": 5, "public_batch": 32, **own},
            "train": {"optimiser": "adam", "learning_rate": 1e-3, "local_steps": 5, "evaluate_every": ROUNDS},
            "data": {"source": "digits", "public": 400},
            "partition": {"kind": "dirichlet", "alpha": 0.1},
            "fleet": [{"count": DEVICES, "model": "mlp"}],
            "run": {"standalone": False},
        }
    )


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "fedal-discriminator")
    out = parser.parse_args().out
    sweep = _table(SETTINGS, SEEDS, out)
    again = _table([each for each in SETTINGS if each[0] in AGAIN], OTHERS, out)
    heads = (f"Seeds {', '.join(map(str, seeds))}:" for seeds in (SEEDS, OTHERS))
    written(PAGE, "\n\n".join([next(heads), sweep, next(heads), again, software()]))


def _table(settings: Sequence[tuple[str, Mapping[str, Any]]], seeds: Sequence[int], out: Path) -> str:
    without = over_seeds(point("fedmd_lf", {}), seeds, out)
    rows = [["discriminator", "accuracy", "gain over FedMD-LF", "seeds better"]]
    rows.append(["none: FedMD-LF", mean_and_deviation(_accuracies(without)), "", ""])
    for name, params in settings:
        found = _accuracies(over_seeds(point("fedal", params), seeds, out))
        gains = [after - before for after, before in zip(found, _accuracies(without), strict=True)]
        better = f"{sum(gain > 0 for gain in gains)} of {len(seeds)}"
        rows.append([name, mean_and_deviation(found), mean_and_deviation(gains, sign=True), better])
        print(rows[-1], statistics.fmean(gains), flush=True)
    return markdown(rows)


def _accuracies(found: Sequence[Figures]) -> list[float]:
    return [each["accuracy"] for each in found]


if __name__ == "__main__":
    main()
