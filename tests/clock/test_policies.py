"""Participants and over-selection in whole runs with devices that drop out."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import fleets
import pytest

from coordinator.results.report.summary import summary, without_times
from edge_sdk.errors import UsageError
from edge_sim.config import settings


def simulated(pictures: Path, method: str = "fedmd", dropout: float = 0.4, **policy: Any) -> fleets.Run:
    given = {"participants": 5, "quorum": 3, "deadline_s": 100.0, "patience": 50, "rounds": 12, **policy}
    tables = fleets.tables(pictures, method, 20, **given)
    tables["partition"] = {"kind": "iid"}
    if method == "fedal":
        tables["method"]["max_devices"] = 20
    tables["fleet"] = [{"count": 20, "model": "softmax", "dropout": dropout, "dropout_s": 300.0}]
    return fleets.Run(settings.parse(tables, Path("f.toml"))).finished()


def answers(run: fleets.Run) -> float:
    return statistics.fmean(entry.contributors for entry in run.result.history)


def test_over_selection_brings_the_answers_that_are_wanted_and_sooner(pictures: Path) -> None:
    plain, over = simulated(pictures), simulated(pictures, over_selection=True)
    assert plain.result.completed
    assert over.result.completed
    assert answers(plain) < 3.7
    assert answers(over) > 4.3
    assert over.clock.now_s < 0.8 * plain.clock.now_s
    rate = over.server.rounds.answered / over.server.rounds.asked
    assert 0.4 < rate < 0.8


@pytest.mark.parametrize("method", ["fedproto", "fedavg", pytest.param("fedal", marks=pytest.mark.torch)])
def test_methods_live_with_participants(pictures: Path, method: str) -> None:
    one, two = (simulated(pictures, method, over_selection=True, rounds=3) for _ in range(2))
    assert one.result.completed, one.result.reason
    assert without_times(summary(one.result)) == without_times(summary(two.result))
    assert not [warning for warning in one.result.warnings if warning.startswith("W5: device")]


def test_without_drop_out_nobody_is_asked_in_vain(pictures: Path) -> None:
    run = simulated(pictures, dropout=0.0, over_selection=True)
    assert sum(device.rounds_done for device in run.result.devices) == 5 * 12
    assert {entry.contributors for entry in run.result.history} == {5}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"participants": 21}, "federation.participants: expected at most .* 20 .* found 21"),
        ({"quorum": 6}, "federation.quorum: expected at most .* 5 .* found 6"),
        ({"participants": 0}, "federation.participants"),
    ],
)
def test_a_mistake_gets_one_line(pictures: Path, policy: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulated(pictures, **policy)


def test_over_selection_needs_participants(pictures: Path) -> None:
    with pytest.raises(UsageError, match=r"federation\.over_selection: .* federation\.participants"):
        fleets.Run(fleets.config(pictures, over_selection=True))
