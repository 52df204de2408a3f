"""What rounds and runs cost is the same sum wherever it stands, whatever happens to the coordinator."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest

from coordinator.record.result import Result
from coordinator.report.summary import summary
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


def crashed(pictures: Path, at_s: float) -> fleets.Run:
    crashing = fleets.Run(fleets.built(pictures))
    crashing.power_cut("coordinator", at_s, OUTAGE_S)
    return crashing.finished()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_crash_of_the_coordinator_costs_its_outage_and_hides_no_work(pictures: Path, share: float) -> None:
    calm = fleets.Run(fleets.built(pictures)).finished()
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


@pytest.mark.parametrize("steps", [60, 105, 140])
def test_a_resumed_run_has_the_costs_of_all_its_parts(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    left, step, stopped_s = [steps], VirtualClock.step, [0.0]

    def counted(clock: VirtualClock) -> bool:
        left[0] -= 1
        if not left[0]:
            stopped_s[0] = clock.now_s
            raise KeyboardInterrupt
        return step(clock)

    whole = run(fleets.tables(pictures))
    monkeypatch.setattr(VirtualClock, "step", counted)
    with pytest.raises(KeyboardInterrupt):
        run(fleets.tables(pictures), out=tmp_path / "run")
    resumed = run(fleets.tables(pictures), out=tmp_path / "run", resume=True)
    totals_are_sums(resumed)
    times = [sum(entry.virtual_s for entry in found.history) for found in (resumed, whole)]
    assert resumed.time["virtual_s"] - times[0] == pytest.approx(whole.time["virtual_s"] - times[1], rel=0.2)
    assert all(entry.device_flops > 0 for entry in resumed.history)
    sent = [sum(entry.bytes_up + entry.bytes_down for entry in found.history) for found in (resumed, whole)]
    assert sent[0] >= sent[1]
