"""The hour of a service in a few minutes: every step does what it says, no upload is lost, no agent is silently off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.reliability import hour
from benchmarks.reliability.hour_figures import page

pytestmark = [
    pytest.mark.long,
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed"),
    pytest.mark.skipif(not (hour.ROOT / ".git").exists(), reason="the builds are of commits, and this is no clone"),
]


@pytest.mark.timeout(1800)
def test_a_short_hour(tmp_path: Path) -> None:
    told = hour.lived(tmp_path, 6.0)
    said = page(told)
    assert not [step for step in told["steps"] if step["fault"]], said
    assert told["lost"] == 0, said
    assert not [why for each in told["devices"].values() for why in each["off"] if "NO REASON" in why], said
    assert all(each["rounds"] for each in told["devices"].values()), said
