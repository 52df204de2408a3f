"""benchmarks/coordinator_load/year.py in ten days: what a year has in them, none of it lost between generations."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.coordinator_load.year import FIRST, YEAR, Diary, Plan, lived


@pytest.mark.long
def test_a_short_time_has_all_that_a_year_has(tmp_path: Path) -> None:
    diary, plan = Diary(), Plan(days=10, boards=10)
    record = lived(tmp_path, plan, diary)
    assert record.done == 10
    assert record.refused_frames == {}
    assert all(entry.device_j > 0 for entry in record.rounds)  # joules go on over the generations
    held = {day for day, line in diary.said if "held back everywhere" in line}
    _, bad, mended, _ = plan.starts
    assert {bad, mended - timedelta(days=1)} <= held
    new = [
        (day, line.split(":")[0]) for day, line in diary.said if line.startswith(("a new generation", "edge-sdk lab"))
    ]
    assert new == [(bad, "a new generation"), (mended, "a new generation"), (plan.renewed, "edge-sdk lab renew")]


def test_a_year_has_its_days() -> None:
    plan = Plan()
    assert [f"{day:%m-%d}" for day in (*plan.starts, plan.renewed)] == ["01-01", "06-01", "06-08", "01-01", "09-01"]
    assert plan.starts[-1] == FIRST + timedelta(days=YEAR)
    assert len(plan.unpowered) == 11
