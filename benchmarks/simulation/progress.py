"""The simulator's best ratio to the bare loop, case by case: with the engines of before, and now.

What was measured before traced training steps and shards were built is kept in docs/results/simulation-before.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.figures import RESULTS, Found, Table

BEFORE, NOW = RESULTS / "simulation-before.json", RESULTS / "simulation.json"
ENGINES = {
    "cohort": "cohort",
    "workers": "workers, since removed",
    "shards": "shards",
    "shards-stacked": "shards, stacked",
}
"""The sections that count, and what they measured."""
Case = tuple[str, str, int]


class Ratio(NamedTuple):
    """The median over the pairs of a case."""

    value: float
    engine: str


def progress(goals: Mapping[Case, float], before: Path = BEFORE, now: Path = NOW) -> Found:
    """Return the best ratio of each case in both files, beside its goal."""
    then_known, now_known = (json.loads(file.read_text()) for file in (before, now))
    then_best, now_best = best(then_known), best(now_known)
    rows: Table = [["method", "fleet", "devices", "before", "now", "now / before", "goal"]]
    for (method, fleet, devices), goal in goals.items():
        then, today = then_best[method, fleet, devices], now_best[method, fleet, devices]
        rows.append(
            [
                method,
                fleet,
                str(devices),
                f"{then.value:.2f} ({then.engine})",
                f"**{today.value:.2f}** ({today.engine})",
                f"{today.value / then.value:.2f}",
                f"{goal:g}" + (" met" if today.value <= goal else ""),
            ]
        )
    dates = ", ".join(sorted({then_known[engine]["date"] for engine in ENGINES if engine in then_known}))
    return Found(rows, [f"{WHAT} Before: {dates}."])


WHAT = (
    "Time of a device's round over that of the bare loop, with the quickest engine of those in the sections above; "
    "`cohort` and `shards, stacked` stacked dense nets, whose bits are not those of `exact`."
)


def best(known: Mapping[str, Any]) -> dict[Case, Ratio]:
    """Return the smallest ratio of each case over the engines of a file of figures."""
    found: dict[Case, Ratio] = {}
    for section, engine in ENGINES.items():
        for method, fleet, devices, _, _, ratio, *_ in known.get(section, {"table": [[]]})["table"][1:]:
            case, value = (method, fleet, int(devices)), float(re.findall(r"\*\*([\d.]+)\*\*", ratio)[0])
            found[case] = min(Ratio(value, engine), found.get(case, Ratio(value, engine)))
    return found
