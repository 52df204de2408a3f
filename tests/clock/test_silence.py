"""Why a simulated device missed a deadline: the cause that the simulation knows stands in the result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fleets
import pytest
from test_scenarios import tables

import firmware_profiles
from coordinator.record.observer import RunObserver, RunView
from edge_sim.config import settings

EVERYBODY = {"count": 3}
LONG: dict[str, Any] = {"slow_share": 1.0, "slow_factor": 3000}
"""A row of a device that computes some five seconds in each round."""


def reasons(pictures: Path, row: dict[str, Any], **changes: Any) -> list[str]:
    """Why the last of four devices missed exchanges."""
    parsed = settings.parse(tables(pictures, EVERYBODY, row, **changes), Path("f.toml"))
    return [each.reason for each in fleets.Run(parsed).finished().result.missed if each.device == "device-03"]


@pytest.mark.parametrize(
    ("row", "changes", "words"),
    [
        ({"available": "22:00-06:00", **LONG}, {"scenario": {"starts_at": "05:59"}, "rounds": 40}, "hours"),
        ({"dropout": 1.0, "dropout_s": 500}, {}, "while it computed"),
        ({"power_cuts_per_day": 2000, "power_cut_s": 5000, **LONG}, {"rounds": 40}, "power was cut"),
        ({"slow_share": 1.0, "slow_factor": 1e4}, {"deadline_s": 5.0}, r"has computed for .* times as slow"),
        ({"fails_after_s": 0.5}, {"rounds": 40}, "broke"),
        ({"battery_wh": 0.0001}, {"rounds": 40}, "battery"),
        (
            {"link": "SLOW"},
            {"deadline_s": 5.0, "join_grace_s": 100.0},
            "upload is on its way, over lte-cat1",
        ),
    ],
)
def test_the_cause_is_named(
    pictures: Path, tmp_path: Path, row: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    if row.get("link") == "SLOW":
        text = (Path(firmware_profiles.__file__).parent / "links" / "lte-cat1.toml").read_text()
        slow = tmp_path / "SLOW.toml"
        slow.write_text(re.sub(r"(?m)^up_bytes_per_s = .*$", "up_bytes_per_s = 100", text))
        row = {"link": str(slow)}
    found = reasons(pictures, row, **{"deadline_s": 20.0, **changes})
    assert found
    assert any(re.search(words, reason) for reason in found), found


def test_a_late_upload_keeps_what_was_known_at_the_deadline(pictures: Path) -> None:
    found = reasons(pictures, {"slow_share": 1.0, "slow_factor": 2500}, deadline_s=3.0, rounds=8)
    assert any("came after the deadline" in reason and "times as slow" in reason for reason in found), found


class Absent(RunObserver):
    """Notes why devices are absent, as the live page asks for it."""

    def __init__(self) -> None:
        self.why: set[str] = set()

    def begun(self, view: RunView) -> None:
        self._view = view

    def round_done(self, *_: Any) -> None:
        self.why |= {entry.why for entry in self._view.entries(self._view.devices()) if entry.state == "absent"}


def test_the_page_is_told_too(pictures: Path) -> None:
    seen = Absent()
    parsed = settings.parse(tables(pictures, EVERYBODY, {"dropout": 1.0, "dropout_s": 500}), Path("f.toml"))
    fleets.Run(parsed, observer=seen).finished()
    assert any("while it computed" in why for why in seen.why), seen.why
