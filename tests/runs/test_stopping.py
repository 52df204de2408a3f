"""A budget ends a run after a round: with the closing exchange, the same figures, and the same after an interrupt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import pytest
from interrupting import stop_after

from coordinator import rounds
from coordinator.results.figures.result import Result
from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.summary import summary, without_times
from coordinator.rounds import RoundPolicy
from edge_sdk.cli import main
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sim.runs.runner import run

ROUNDS = 6


def tables(pictures: Path, method: str = "fedavg", **stops: Any) -> dict[str, Any]:
    found = fleets.tables(pictures, method, devices=3, rounds=ROUNDS)
    found["federation"] |= stops
    return found


def spent(result: Result) -> list[int]:
    """Bytes so far, by round."""
    return [sum(each.bytes_up + each.bytes_down for each in result.history[:end]) for end in range(1, ROUNDS + 1)]


@pytest.fixture(scope="module")
def whole(pictures: Path) -> dict[str, Result]:
    return {method: run(tables(pictures, method)) for method in ("fedavg", "fedmd")}


@pytest.mark.parametrize("method", ["fedavg", "fedmd"])  # fedmd's devices know the batch of the last round
def test_it_ends_after_the_round_that_spends_the_bytes(pictures: Path, whole: dict[str, Result], method: str) -> None:
    full = whole[method]
    result = run(tables(pictures, method, stop_at_bytes=spent(full)[2] - 1))
    assert result.completed
    assert (result.rounds, result.rounds_done) == (ROUNDS, 3)
    assert "stop_at_bytes" in result.stopped
    assert [each.bytes_up for each in result.history] == [each.bytes_up for each in full.history[:3]]
    measured = [(each.accuracy, each.global_accuracy) for each in result.history]
    assert measured == [(each.accuracy, each.global_accuracy) for each in full.history[:3]]


def test_it_ends_at_an_accuracy(pictures: Path, whole: dict[str, Result]) -> None:
    means = [sum(each.global_accuracy.values()) / 3 for each in whole["fedavg"].history]
    result = run(tables(pictures, stop_at_accuracy=max(means[:3])))
    assert "stop_at_accuracy" in result.stopped
    assert "global model" in result.stopped
    assert result.rounds_done == means.index(max(means[:3])) + 2  # a global model is measured a round later


def test_a_budget_that_is_never_spent_changes_nothing(pictures: Path, whole: dict[str, Result]) -> None:
    result = run(tables(pictures, stop_at_bytes=10**12, stop_at_accuracy=1.0))
    assert without_times(summary(result)) == without_times(summary(whole["fedavg"]))


@pytest.mark.parametrize("steps", [30, 60, 75, 90])
def test_the_same_after_an_interrupt(
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    settings = tables(pictures, stop_at_bytes=spent(whole["fedavg"])[2] - 1)
    expected = run(settings)
    stop_after(monkeypatch, steps, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run")
    result = run(settings, out=tmp_path / "run", resume=True)
    assert (result.rounds_done, result.stopped) == (3, expected.stopped)
    for mine, theirs in zip(result.devices, expected.devices, strict=True):
        assert (mine.accuracy, mine.bytes_up, mine.metrics) == (theirs.accuracy, theirs.bytes_up, theirs.metrics)


def test_after_a_restart_only_the_closing_exchange_is_left() -> None:
    policy = RoundPolicy(expected=1, quorum=1, rounds=9, exchanges=2)
    state = rounds.resumed(policy, ExchangeId(3, 2), frozenset(), enough=True)
    assert (state.closing, state.unrecorded) == (True, 3)


def test_why_it_stopped_is_read_back(pictures: Path, tmp_path: Path) -> None:
    result = run(tables(pictures, stop_at_bytes=1))
    write_run(result, "", tmp_path)
    assert read_run(tmp_path).stopped == result.stopped
    assert result.rounds_done == 1


@pytest.mark.parametrize("value", ["stop_at_bytes=0", "stop_at_bytes=1.5", "stop_at_accuracy=90", "stop_at_accuracy=0"])
def test_a_budget_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[federation]\nname = "x"\nrounds = 2\ndevices = 2\n[data]\nsource = "digits"\n')
    assert main(["simulate", str(file), "--set", f"federation.{value}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert value.split("=", maxsplit=1)[0] in line
