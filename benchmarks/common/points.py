"""Points of a study: federations as tables, each run once per seed, their figures kept in a folder."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import edge_sim
from coordinator.results.figures.outcome import versions
from coordinator.results.figures.result import Result
from coordinator.results.report.summary import summary
from edge_sim.config import settings

Figures = dict[str, float]
"""The figures of one run, by name."""


@dataclass(frozen=True)
class Point:
    """One federation of a study."""

    tables: Mapping[str, Any]
    """The tables of its TOML file, without the seed."""

    def figures(self, seed: int, out: Path, more: Callable[[Result], Figures] | None = None) -> Figures:
        """Return the figures of a run under a seed, from the folder if it was run before.

        more: further figures of a run.
        """
        tables = copy.deepcopy(dict(self.tables))
        tables["federation"]["seed"] = seed
        key = hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()[:16]
        kept = out / f"{key}.json"
        if kept.exists():
            found: Figures = json.loads(kept.read_text())["figures"]
            return found
        result = edge_sim.run(settings.parse(tables, out / "study.toml"))
        found = {**summary(result)["metrics"], **(more(result) if more else {})}
        found["accuracy"] = summary(result)["accuracy"]["mean"]
        if "global" in result.models:
            found["global"] = summary(result)["global_model"]["accuracy"]["mean"]
        out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"tables": tables, "figures": found}, default=str))
        return found


def over_seeds(
    point: Point, seeds: Sequence[int], out: Path, more: Callable[[Result], Figures] | None = None
) -> list[Figures]:
    """Return the figures of a point under each seed."""
    return [point.figures(seed, out, more) for seed in seeds]


def mean_and_deviation(values: Sequence[float], *, percent: bool = True, sign: bool = False) -> str:
    """Return `mean ± deviation over seeds`, in per cent or as it is."""
    scale = 100 if percent else 1
    plus = "+" if sign else ""
    return f"{scale * statistics.fmean(values):{plus}.1f} ± {scale * statistics.stdev(values):.1f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def written(page: Path, block: str) -> None:
    """Write the figures of a study between two marks on its page; what else stands there stays."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def software() -> str:
    """Return the date, the machine and the versions behind a page."""
    packages = ", ".join(f"{package} {version}" for package, version in versions().items())
    return f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores; {packages}"
