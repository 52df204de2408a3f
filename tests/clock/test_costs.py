"""What rounds and runs cost is the same sum wherever it stands, whatever happens to the coordinator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import fleets
import pytest

from coordinator.results.figures.result import Result
from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.summary import summary
from edge_sim.clock.clock import VirtualClock
from edge_sim.runs.runner import run

OUTAGE_S = 600.0


def totals_are_sums(result: Result) -> None:
    work, devices = summary(result)["work"], result.devices
    assert work["device_j_total"] == pytest.approx(sum(device.energy_j for device in devices))
    assert work["device_s_total"] == pytest.approx(sum(device.busy_s for device in devices))
    assert work["device_flops_total"] == sum(device.flops for device in devices)
    in_rounds_j = sum(entry.device_j for entry in result.history)
    assert 0.5 * work["device_j_total"] < in_rounds_j < work["device_j_total"]  # the rest is the last evaluation's


@functools.cache
def undisturbed(pictures: Path) -> fleets.Run:
    """Computed once for all moments of a crash."""
    return fleets.Run(fleets.built(pictures)).finished()


def crashed(pictures: Path, at_s: float) -> fleets.Run:
    crashing = fleets.Run(fleets.built(pictures))
    crashing.power_cut("coordinator", at_s, OUTAGE_S)
    return crashing.finished()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_crash_of_the_coordinator_costs_its_outage_and_hides_no_work(pictures: Path, share: float) -> None:
    calm = undisturbed(pictures)
    begun_s, rounds = calm.server.record.started_s, [entry.virtual_s for entry in calm.result.history]
    assert begun_s is not None
    hit = crashed(pictures, begun_s + share * sum(rounds))
    took = [entry.virtual_s for entry in hit.result.history]
    longest = max(range(len(took)), key=took.__getitem__)
    assert OUTAGE_S < took[longest] < 1.5 * OUTAGE_S
    assert took[:longest] == pytest.approx(rounds[:longest])
    assert hit.server.record.started_s == begun_s
    assert [entry.device_flops for entry in hit.result.history] == [entry.device_flops for entry in calm.result.history]
    for name in ("bytes_up", "bytes_down", "scalars_down"):
        assert sum(getattr(entry, name) for entry in hit.result.history) >= sum(
            getattr(entry, name) for entry in calm.result.history
        ), name
    assert sum(each.bytes_up + each.bytes_down for each in hit.result.devices) > sum(
        each.bytes_up + each.bytes_down for each in calm.result.devices
    ), "what was sent again costs more"
    for each in (calm, hit):
        totals_are_sums(each.result)
        assert each.result.points()[-1].time_s == pytest.approx(sum(entry.virtual_s for entry in each.result.history))


def interrupted(tables: dict[str, Any], out: Path, steps: int, monkeypatch: pytest.MonkeyPatch, **how: bool) -> None:
    """Begin, or go on with, a run that Ctrl-C ends after so many events."""
    left, step = [steps], VirtualClock.step

    def counted(clock: VirtualClock) -> bool:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return step(clock)

    with monkeypatch.context() as patch:
        patch.setattr(VirtualClock, "step", counted)
        with pytest.raises(KeyboardInterrupt):
            run(tables, out=out, **how)


def long_steps(pictures: Path, method: str) -> dict[str, Any]:
    """A run in which devices compute for longer than frames travel: one frame more or less changes its time little."""
    tables = fleets.tables(pictures, method)
    tables["train"]["local_steps"] = 200
    return tables


@functools.cache
def uninterrupted(pictures: Path, method: str) -> Result:
    return run(long_steps(pictures, method))


def same_costs(found: Result, whole: Result) -> None:
    """Bytes and operations are those of the whole run; seconds and joules but for the frames that were under way."""
    for name in ("bytes_up", "bytes_down", "flops", "steps"):
        assert [getattr(d, name) for d in found.devices] == [getattr(d, name) for d in whole.devices], name
    for name in ("bytes_up", "bytes_down", "scalars_up", "scalars_down"):
        assert sum(getattr(r, name) for r in found.history) == sum(getattr(r, name) for r in whole.history), name
    for name in ("busy_s", "energy_j"):
        assert sum(getattr(d, name) for d in found.devices) == pytest.approx(
            sum(getattr(d, name) for d in whole.devices), rel=0.02
        )
    assert found.time["virtual_s"] == pytest.approx(whole.time["virtual_s"], rel=0.02)
    totals_are_sums(found)


@pytest.mark.parametrize(
    ("method", "steps"),
    [*(("fedmd", steps) for steps in (20, 60, 71, 105, 140)), ("fedavg", 60)],
)
def test_a_resumed_run_costs_what_it_would_without_the_interrupt(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, steps: int
) -> None:
    """What it takes to go on is booked apart, and in no other figure."""
    tables, out = long_steps(pictures, method), tmp_path / "run"
    whole = uninterrupted(pictures, method)
    interrupted(tables, out, steps, monkeypatch)
    found = run(tables, out=out, resume=True)
    same_costs(found, whole)
    assert found.resumed["times"] == 1
    assert found.resumed["virtual_s"] > 0
    assert found.resumed["joules"] > 0
    assert (found.resumed["bytes_up"] > 0) == (steps > 20)  # until then nothing had arrived
    write_run(found, "", out)
    assert read_run(out).resumed == found.resumed
    assert not whole.resumed
    assert summary(found)["resumed"] == found.resumed
    assert "resumed" not in summary(whole)


def test_every_interrupt_is_booked(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, out = long_steps(pictures, "fedmd"), tmp_path / "run"
    interrupted(tables, out, 70, monkeypatch)
    interrupted(tables, out, 90, monkeypatch, resume=True)
    found = run(tables, out=out, resume=True)
    same_costs(found, uninterrupted(pictures, "fedmd"))
    assert found.resumed["times"] == 2
