"""Whole runs in which things go wrong: they end, they repeat bit for bit, and each trouble shows where it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from coordinator.results.figures.result import Result
from coordinator.results.report.summary import summary
from edge_sdk import cli
from edge_sdk.errors import RunFailed, UsageError
from edge_sim.config import settings
from edge_sim.runs import run_inputs
from edge_sim.runs.runner import run


class Interrupt(RunObserver):
    """Ctrl-C after the first round."""

    def round_done(self, *_: Any) -> None:
        raise KeyboardInterrupt


POLICY = {"quorum": 3, "deadline_s": 120.0, "join_grace_s": 10.0, "patience": 100}
HOUR_S = 3600.0
LATE = (("broker", "5000000"), ("coordinator", "4000000"))


def simulated(pictures: Path, *rows: dict[str, Any], method: str = "fedmd", **changes: Any) -> fleets.Run:
    return fleets.Run(settings.parse(tables(pictures, *rows, method=method, **changes), Path("f.toml"))).finished()


def tables(
    pictures: Path, *rows: dict[str, Any], method: str = "fedmd", scenario: dict[str, Any] | None = None, **policy: Any
) -> dict[str, Any]:
    found = fleets.tables(pictures, method, sum(row.get("count", 1) for row in rows), **{**POLICY, **policy})
    found["fleet"] = [{"model": "softmax", **row} for row in rows]
    return {**found, "scenario": scenario or {}}


def figures(result: Result) -> str:
    """Everything but the versions and what this machine took."""
    return json.dumps({key: value for key, value in summary(result).items() if key not in {"versions", "time"}})


HARD = (
    {"count": 2, "dropout": 0.3, "dropout_s": 40, "slow_share": 0.5, "slow_factor": 30},
    {"count": 2, "link": "lte-cat1", "power_cuts_per_day": 2000, "power_cut_s": 20},
    {"count": 2, "available": "22:00-06:00", "clock_offset_s": -3e6, "clock_drift": 0.01},
    {"byzantine": "edge_sim.byzantine:noise"},
)
HARD_TIMES = {
    "starts_at": "05:59",
    "broker_lost_at_s": [20.0, 130.0],
    "broker_lost_for_s": 12,
    "coordinator_lost_at_s": [60.0],
    "coordinator_lost_for_s": 9,
}


def test_everything_at_once_repeats_bit_for_bit(pictures: Path) -> None:
    one, two = (simulated(pictures, *HARD, scenario=HARD_TIMES, rounds=8) for _ in range(2))
    assert one.result.completed, one.result.reason
    assert figures(one.result) == figures(two.result)
    assert one.result.history == two.result.history
    assert one.model_bytes == two.model_bytes
    assert one.clock.now_s == two.clock.now_s
    other = simulated(pictures, *HARD, scenario=HARD_TIMES, rounds=8, seed=8)
    assert figures(other.result) != figures(one.result)


def test_who_is_there_only_at_night_is_there_only_at_night(pictures: Path) -> None:
    rows = ({"count": 3}, {"count": 2, "available": "22:00-06:00"})
    by_day = simulated(pictures, *rows, scenario={"starts_at": "12:00"})
    assert by_day.result.completed
    assert [device.rounds_done for device in by_day.result.devices] == [3, 3, 3, 0, 0]
    assert by_day.result.devices[4].energy_j == 0.0
    assert [(device.learns, device.joined) for device in by_day.result.devices[2:4]] == [(True, True), (True, False)]
    at_night = simulated(pictures, *rows, scenario={"starts_at": "23:00"})
    assert [device.rounds_done for device in at_night.result.devices] == [3] * 5


def test_a_run_waits_for_the_evening(pictures: Path) -> None:
    """The quorum is there from ten o'clock on."""
    night = simulated(pictures, {"count": 4, "available": "22:00-23:00"}, scenario={"starts_at": "20:00"}, quorum=4)
    assert night.result.completed
    assert 2 * HOUR_S < night.clock.now_s < 2.1 * HOUR_S
    (told,) = run_inputs.remark(night.server, night.clock.now_s)
    assert "2 h 00 min" in told
    assert "device-03" in told


def test_a_run_that_began_at_once_says_nothing_of_it(pictures: Path) -> None:
    day = simulated(pictures, {"count": 4})
    assert run_inputs.remark(day.server, day.clock.now_s) == ()


def test_without_a_quorum_a_run_waits_for_the_last_to_come_on(pictures: Path) -> None:
    """With one, whoever is off stands in the tables and has told no accuracy."""
    plain = tables(pictures, {"count": 3}, {"available": "22:00-23:00"}, scenario={"starts_at": "20:00"})
    early = run(settings.parse(plain, Path("f.toml")))
    assert [device.rounds_done for device in early.devices] == [3, 3, 3, 0]
    assert [line for line in early.warnings if "1 of 4 devices" in line and "device-03" in line]
    del plain["federation"]["quorum"]
    late = run(settings.parse(plain, Path("f.toml")))
    assert [device.rounds_done for device in late.devices] == [3] * 4
    assert late.time["virtual_s"] > 2 * HOUR_S > early.time["virtual_s"]


def test_hours_that_never_meet_end_the_run(pictures: Path) -> None:
    rows = ({"count": 2, "available": "01:00-02:00"}, {"count": 2, "available": "03:00-04:00"})
    with pytest.raises(RunFailed, match=r"scenario\.until_days.*collecting.* round 0"):
        simulated(pictures, *rows, quorum=4, deadline_s=1e5, scenario={"until_days": 0.5})


def test_settings_that_came_to_nothing_are_remarked(pictures: Path) -> None:
    plain = tables(pictures, {"count": 4}, scenario={"broker_lost_at_s": [0.01, 5e6], "coordinator_lost_at_s": [4e6]})
    plain["run"] = {**plain.get("run", {}), "stacked": ["softmax"], "ray_fold": True}
    plain["train"] |= {"schedule_factor": 0.5, "decay_all": True, "beta1": 0.5}
    broker, coordinator = (
        f"scenario.{who}_lost_at_s: {at} s was not reached: the run was over at " for who, at in LATE
    )
    found = run(settings.parse(plain, Path("f.toml"))).warnings
    useless = {line.partition(":")[0] for line in found if "has no effect without run." in line}
    assert useless == {"run.stacked", "run.ray_fold"}
    useless = {line.partition(":")[0] for line in found if line.startswith("train.")}
    assert useless == {"train.schedule_factor", "train.decay_all"}
    assert [line[: len(broker)] for line in found].count(broker) == 1
    assert [line[: len(coordinator)] for line in found].count(coordinator) == 1
    plain["scenario"] = {"broker_lost_at_s": [0.01]}
    plain["run"] = {**plain["run"], "ray_fold": False, "stack": True}
    assert not any(
        line.startswith(("run.", "scenario.")) for line in run(settings.parse(plain, Path("f.toml"))).warnings
    )


def test_an_empty_battery_ends_a_devices_part(pictures: Path) -> None:
    rows = ({"count": 3}, {"battery_wh": 0.001, "slow_share": 1.0, "slow_factor": 10_000.0})
    short = simulated(pictures, *rows)
    assert short.result.completed
    assert [device.rounds_done for device in short.result.devices] == [3, 3, 3, 0]
    assert short.result.devices[3].energy_j == pytest.approx(3.6, rel=1e-4)
    long = simulated(pictures, {"count": 3}, {"battery_wh": 100.0})
    assert [device.rounds_done for device in long.result.devices] == [3] * 4


def test_one_that_breaks_is_not_waited_for_twice(pictures: Path) -> None:
    broken = simulated(pictures, {"count": 3}, {"fails_after_s": 0.001}, rounds=4)
    assert broken.result.completed
    assert [device.rounds_done for device in broken.result.devices] == [4, 4, 4, 0]
    assert broken.clock.now_s < 2 * POLICY["deadline_s"]


def test_a_straggler_is_who_was_waited_for(pictures: Path) -> None:
    slow = simulated(pictures, {"count": 5}, {"slow_share": 1.0, "slow_factor": 2000.0}, quorum=6)
    assert {entry.waited_for for entry in slow.result.history} == {"device-05"}
    waits_s = {device.id: device.waited_s for device in slow.result.devices}
    assert waits_s["device-05"] > 10 * max(wait_s for name, wait_s in waits_s.items() if name != "device-05")
    assert slow.result.devices[5].busy_s > 1000 * slow.result.devices[4].busy_s
    assert slow.result.devices[5].energy_j > slow.result.devices[4].energy_j


@pytest.mark.parametrize(
    "scenario",
    [
        {"broker_lost_at_s": [0.001, 0.02, 1.0, 3.0], "broker_lost_for_s": 5.0},
        {"coordinator_lost_at_s": [0.03, 2.0, 30.0], "coordinator_lost_for_s": 5.0},
    ],
)
def test_what_is_lost_for_a_while_changes_no_result(pictures: Path, scenario: dict[str, Any]) -> None:
    rows = ({"count": 4, "slow_share": 1.0, "slow_factor": 1000.0},)
    calm = simulated(pictures, *rows, quorum=4, deadline_s=600.0)
    lost = simulated(pictures, *rows, quorum=4, deadline_s=600.0, scenario=scenario)
    assert lost.model_bytes == calm.model_bytes
    assert lost.clock.now_s > calm.clock.now_s


@pytest.mark.parametrize("at_s", [0.001, 0.02, 0.05, 0.5])
def test_a_broker_that_is_away_for_longer_than_the_round_waits_ends_no_run(pictures: Path, at_s: float) -> None:
    """The round's clock stands still meanwhile: no device is called silent for it."""
    short = {"quorum": 4, "deadline_s": 8.0, "patience": 1}
    calm = simulated(pictures, {"count": 4}, **short)
    lost = simulated(
        pictures, {"count": 4}, **short, scenario={"broker_lost_at_s": [at_s], "broker_lost_for_s": 3600.0}
    )
    assert lost.result.completed
    assert lost.model_bytes == calm.model_bytes


def test_wrong_clocks_change_no_result(pictures: Path) -> None:
    right = simulated(pictures, {"count": 4}, quorum=4)
    wrong = simulated(
        pictures,
        {"clock_offset_s": 1e9},
        {"clock_offset_s": -1e9, "clock_drift": 0.9},
        {"clock_drift": -0.5},
        {"clock_offset_s": 0.3, "clock_drift": 1e-5},
        quorum=4,
    )
    assert wrong.model_bytes == right.model_bytes


@pytest.mark.parametrize("lie", ["flip_signs", "noise", "magnify"])
@pytest.mark.parametrize("method", ["fedmd", "fedproto"])
def test_a_liar_changes_what_others_learn_and_is_legal(pictures: Path, method: str, lie: str) -> None:
    honest = simulated(pictures, {"count": 4}, method=method)
    lied = simulated(pictures, {"count": 3}, {"byzantine": f"edge_sim.byzantine:{lie}"}, method=method)
    assert lied.result.completed
    assert not lied.result.refused_frames
    assert lied.coordinator_bytes != honest.coordinator_bytes


def test_a_lie_that_writes_into_its_knowledge_changes_no_model(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lies_in_{tmp_path.name}"  # no other test has imported that
    (tmp_path / f"{name}.py").write_text(
        "def lie(knowledge, rng):\n    knowledge['weights'].values[:] = 0\n    return knowledge\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = simulated(pictures, {"count": 2}, {"byzantine": f"{name}:lie"}, method="fedavg")
    assert run.result.completed
    assert all(each.participant.context.bench.model.weights().any() for each in run.devices)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "found NoneType"),
        ("raise SystemExit('enough\\nof it')", "raised SystemExit: enough of it"),
        ("return {}", "logits, found dict"),
        ("return {role: 3 for role in knowledge}", "logits: expected PublicLogits, found int"),
        (
            "return {r: dataclasses.replace(p, values=p.values.astype('f8')) for r, p in knowledge.items()}",
            "logits.values: expected 2-d float32",
        ),
    ],
)
def test_a_lie_that_goes_wrong_gets_one_line(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    name = f"lies_in_{tmp_path.name}"  # no other test has imported that
    (tmp_path / f"{name}.py").write_text(f"import dataclasses\ndef lie(knowledge, rng):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as caught:
        simulated(pictures, {"count": 3}, {"byzantine": f"{name}:lie"})
    assert words in str(caught.value)
    assert f"{name}:lie" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_alone_nothing_goes_wrong(pictures: Path) -> None:
    hard = settings.alone(settings.parse(tables(pictures, *HARD, scenario=HARD_TIMES), Path("f.toml")))
    assert hard.scenario == settings.ScenarioTable()
    assert all(row.available is row.byzantine is None and not row.dropout for row in hard.fleet)


def test_an_interrupted_run_goes_on_at_its_time_of_day(pictures: Path, tmp_path: Path) -> None:
    """Stopped in the night's second hour and resumed: it is not evening again, and what was drawn is not forgotten."""
    rows = ({"count": 4, "available": "22:00-23:00", "slow_share": 1.0, "slow_factor": 5000.0},)
    config = settings.parse(tables(pictures, *rows, scenario={"starts_at": "21:00"}, rounds=3), Path("f.toml"))
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "r", observer=lambda _label: Interrupt())
    resumed = run(config, out=tmp_path / "r", resume=True)
    whole = run(config)
    assert resumed.completed
    assert {d.id: d.accuracy for d in resumed.devices} == {d.id: d.accuracy for d in whole.devices}
    assert HOUR_S < resumed.time["virtual_s"] < 1.5 * HOUR_S
    spent = [np.array([device.energy_j for device in found.devices]) for found in (resumed, whole)]
    assert (spent[0] > 0.8 * spent[1]).all()


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("fleet", "available", "22-06", "f.toml: fleet[0].available: "),
        ("fleet", "dropout", 1.5, "f.toml: fleet[0].dropout: "),
        (
            "fleet",
            "byzantine",
            "edge_sim.byzantine:nobody",
            "f.toml: fleet[0].byzantine: 'edge_sim.byzantine:nobody' do",
        ),
        ("fleet", "byzantine", "noise", "expected MODULE:FUNCTION"),
        ("fleet", "byzantine", "os:system", "'os:system': expected a function of your own"),
        ("fleet", "byzantine", "sys:exit", "'sys:exit': expected a function of your own"),
        ("fleet", "byzantine", "builtins:len", "'builtins:len': expected a function of your own"),
        ("fleet", "byzantine", "json:dumps", "'json:dumps': expected a function of your own"),
        ("fleet", "byzantine", "collections:OrderedDict", "expected a function of your own"),
        ("fleet", "byzantine", ".here:lie", "'.here:lie': expected MODULE:FUNCTION"),
        ("fleet", "slow_factor", 0.5, "f.toml: fleet[0].slow_factor: "),
        ("fleet", "charge_w", 3.0, "f.toml: fleet[0].charge_w: "),
        (
            "scenario",
            "broker_lost_at_s",
            [5.0, 60 * 86_400],
            "f.toml: scenario.broker_lost_at_s: 5184000 s never comes",
        ),
        (
            "scenario",
            "coordinator_lost_at_s",
            [1e9],
            "f.toml: scenario.coordinator_lost_at_s: 1000000000 s never comes",
        ),
        ("scenario", "starts_at", "noon", "f.toml: scenario.starts_at: expected a time of day"),
        ("scenario", "broker", 3, "f.toml: scenario.broker: unknown key"),
    ],
)
def test_a_mistake_gets_one_line(pictures: Path, section: str, key: str, value: Any, words: str) -> None:
    found = tables(pictures, {"count": 4})
    (found["fleet"][0] if section == "fleet" else found["scenario"])[key] = value
    with pytest.raises(UsageError) as caught:
        settings.parse(found, Path("f.toml"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_real_broker_imitates_no_trouble_and_that_is_said(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edge_sim.runs.command.run_in", lambda _out, config, **_: fleets.Run(settings.alone(config)).finished().result
    )
    file = tmp_path / "f.toml"
    for rows, told in ((({"count": 4, "dropout": 0.1},), True), (({"count": 4},), False)):
        file.write_text(to_toml(tables(pictures, *rows)))
        assert (
            cli.main(["simulate", str(file), "--broker", "embedded", "--out", str(tmp_path / f"r{told}"), "--json"])
            == 0
        )
        assert ("need the memory broker: ignored" in capsys.readouterr().err) is told


def test_what_a_device_computed_is_forgotten_with_its_round(pictures: Path) -> None:
    whole = simulated(pictures, {"count": 4, "slow_share": 1e-9}, rounds=6)
    kept = [{round_ for round_, _ in device.faults._attempts} for device in whole.devices if device.faults is not None]
    assert kept == 4 * [{5, 6}]
