"""The simulator's progress: the best ratio of each case, before and now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.simulation.progress import BEFORE, Ratio, best, progress

CASE = ("fedproto", "mlp", 20)


def figures(**ratios: str) -> dict[str, Any]:
    """A file of figures with one case, by engine."""
    head = ["method", "fleet", "devices", "bare loop, ms", "ours, ms", "ours / bare (each pair)"]
    return {
        engine: {"table": [head, [*CASE[:2], str(CASE[2]), "2.0", "1.0", ratio]], "date": "2026-11-21"}
        for engine, ratio in ratios.items()
    }


def test_the_quickest_engine_counts() -> None:
    found = best(figures(cohort="**0.96** (0.87, 0.96)", shards="**0.73** (0.71, 0.73)", exact="**0.10** (0.10)"))
    assert found == {CASE: Ratio(0.73, "shards")}


def test_the_table_has_both_and_the_goal(tmp_path: Path) -> None:
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    before.write_text(json.dumps(figures(cohort="**0.80** (0.80)")))
    now.write_text(json.dumps(figures(shards="**0.40** (0.40)")))
    found = progress({CASE: 0.4}, before, now)
    assert found.table[1] == ["fedproto", "mlp", "20", "0.80 (cohort)", "**0.40** (shards)", "0.50", "0.4 met"]
    assert "2026-11-21" in found.remarks[0]


def test_the_figures_of_before_are_kept() -> None:
    assert best(json.loads(BEFORE.read_text()))["fedavg", "mlp", 100].value == 2.59
