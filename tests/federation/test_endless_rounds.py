"""A federation without an end in virtual time: it keeps its pace, skips what nobody can fill, and every device stays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.federation_table import LEAST_ROUND_BYTES
from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.result import Result
from coordinator.rounds import RoundPolicy, Skip
from coordinator.rounds.pace import OpenHours, RoundPace
from coordinator.serving.round_pacing import RoundPacing, Timetable
from edge_sdk.errors import UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import FOREVER, Assign, Receipt, Upload
from edge_sim.config.settings import parse
from edge_sim.runs import runner

DAY_S = 86_400.0


class Watch(RunObserver):
    """Notes when rounds were complete, in hours of virtual time, and what was said."""

    def __init__(self) -> None:
        self.hours: list[float] = []
        self.notes: list[str] = []
        self.record: RunRecord | None = None

    def begun(self, view) -> None:
        self._view = view
        self.record = view.record

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002
        self.hours.append(self._view.now_s() / 3600)

    def noted(self, message: str) -> None:
        self.notes.append(message)


def tables(*, devices: int = 3, days: float = 2.0, fleet: list | None = None, **federation: object) -> dict:
    return {
        "federation": {
            "name": "alive",
            "method": "fedproto",
            "rounds": "forever",
            "devices": devices,
            "quorum": 2,
            "feature_dim": 128,
            **federation,
        },
        "train": {"local_steps": 1, "evaluate_every": 1000, "instrument_every": 0},
        "data": {"train_samples": 120, "test_samples": 60},
        "partition": {"kind": "iid"},
        "scenario": {"until_days": days},
        "fleet": fleet or [{"count": devices, "model": "numpy-random"}],
        "run": {"standalone": "off"},
    }


def served(plain: dict) -> tuple[Result, Watch]:
    watch = Watch()
    return runner.run(plain, observer=lambda _part: watch), watch


def test_rounds_open_every_hour_of_the_night() -> None:
    result, watch = served(tables(every="1h", window="22:00-06:00", time_zone="Europe/Berlin", days=2.0))
    of_day = [int(hour) % 24 for hour in watch.hours]
    assert of_day == [*range(6), *range(22, 24), *range(6), *range(22, 24)]
    assert result.completed
    assert (result.rounds, result.rounds_done) == (16, 16)
    assert result.stopped == "the simulated time is over (scenario.until_days)"


def test_devices_of_a_service_with_a_buffer_get_work_at_its_pace() -> None:
    """Three devices answer every hour: two fill a buffer, and every second hour what was left fills another one."""
    plain = tables(every="1h", window="22:00-06:00", buffer=2, days=2.0)
    plain["scenario"] |= {"coordinator_lost_at_s": [5000.0, 80_000.0], "coordinator_lost_for_s": 600.0}
    result, watch = served(plain)
    assert {int(hour) % 24 for hour in watch.hours} == {*range(6), *range(22, 24)}
    assert (result.completed, result.rounds_done) == (True, 16 * 3 // 2)
    assert {device.rounds_done for device in result.devices} == {16}


def test_an_hour_that_a_clock_change_leaves_out_opens_no_round() -> None:
    """On 29 March 2026 clocks in Berlin jump from 02:00 to 03:00: from then on, an hour sooner."""
    plain = tables(every="1h", window="02:00-02:30", time_zone="Europe/Berlin", days=6.0)
    plain["scenario"]["starts_on"] = "2026-03-27"
    _, watch = served(plain)
    assert [int(hour) for hour in watch.hours] == [2, 24 + 2, 3 * 24 + 1, 4 * 24 + 1, 5 * 24 + 1]


def test_nobody_there_skips_rounds_and_ends_nothing() -> None:
    """Two of three devices are off for twelve hours of each day."""
    fleet = [
        {"count": 1, "model": "numpy-random"},
        {"count": 2, "model": "numpy-random", "available": "12:00-24:00"},
    ]
    result, watch = served(tables(every="1h", fleet=fleet, days=3.0))
    assert result.completed
    assert not [hour for hour in watch.hours if 1 < hour % 24 < 12]
    assert len([hour for hour in watch.hours if hour % 24 >= 12]) >= 33
    assert watch.record is not None
    assert watch.record.skips > 3
    assert watch.record.last_skip["reason"].startswith("1 upload came of the 2 needed")
    assert any("is skipped for now" in note for note in watch.notes)


def test_a_budget_of_bytes_a_day_spaces_the_rounds() -> None:
    free, _ = served(tables(every="1h", days=2.0))
    each = free.history[-1].bytes_up + free.history[-1].bytes_down
    result, watch = served(tables(every="1h", days=2.0, bytes_per_day=5 * each))
    assert free.rounds_done == 48
    assert 4 <= result.rounds_done <= 14
    assert {int(hour // 24) for hour in watch.hours} == {0, 1}


def test_a_coordinator_that_loses_power_keeps_the_pace() -> None:
    plain = tables(every="1h", days=1.0)
    plain["scenario"] |= {"coordinator_lost_at_s": [5000.0, 30_000.0], "coordinator_lost_for_s": 600.0}
    result, watch = served(plain)
    assert result.completed
    assert 23 <= result.rounds_done <= 24
    gaps = [later - earlier for earlier, later in zip(watch.hours, watch.hours[1:], strict=False)]
    assert min(gaps) > 0.99


def test_waiting_devices_say_little() -> None:
    """A round a day: a device that waits sends a Hello now and then, not one a minute."""
    result, _ = served(tables(every="1d", days=5.0))
    sent = sum(device.bytes_up for device in result.devices) / len(result.devices) / 5
    assert sent < 200_000


@pytest.mark.parametrize(
    ("federation", "message"),
    [
        ({"every": "1 hour"}, 'federation.every: expected a duration such as "30min", "1h" or "7d"'),
        ({"every": "0s"}, 'federation.every: expected "1s" to "366d"'),
        ({"window": "22:00-22:00"}, "federation.window: closes when it opens, '22:00-22:00', so no round would open"),
        ({"window": "25:00-06:00"}, 'federation.window: expected two times of day such as "22:00-06:00"'),
        ({"window": "22:00-06:00", "time_zone": "Mars/Olympus"}, "federation.time_zone: expected a name such as"),
        ({"time_zone": "Europe/Berlin"}, "federation.time_zone: has no effect without"),
        ({"bytes_per_day": 0}, "federation.bytes_per_day: expected"),
        (
            {"bytes_per_day": 799},
            "federation.bytes_per_day: a round of 2 devices needs 800 bytes without any knowledge",
        ),
        ({"rounds": "always"}, "federation.rounds: expected"),
    ],
)
def test_a_pace_that_cannot_be_is_one_line(federation: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(tables(**federation), Path("f.toml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_only_a_deployment_heeds_is_said_in_a_simulation() -> None:
    found = parse({**tables(), "guard": {"canary": "c.npz"}, "alerts": {"quiet": "1d"}}, Path("f.toml"))
    assert found.remarks == ("guard.canary: has no effect in a simulation, only in edge-sdk coordinator",)


def test_a_rate_that_falls_along_a_cosine_needs_its_rounds() -> None:
    plain = tables()
    plain["train"] |= {"schedule": "cosine"}
    with pytest.raises(UsageError, match="schedule_rounds: missing"):
        runner.run(plain)


def test_the_resolved_file_says_forever(tmp_path: Path) -> None:
    plain = tables(every="6h", days=1.0)
    result = runner.run(plain, out=tmp_path / "run")
    assert 'rounds = "forever"' in (tmp_path / "run" / "federation.toml").read_text(encoding="utf-8")
    assert result.rounds_done == 4


def test_a_federation_with_an_end_can_have_a_pace() -> None:
    result, watch = served(tables(rounds=3, every="2h", days=2.0))
    assert result.completed
    assert [round(hour) for hour in watch.hours] == [0, 2, 4]


def test_a_round_that_stays_skipped_is_said_again_each_day() -> None:
    now_s, record = 1_772_402_400.0, RunRecord()
    policy = RoundPolicy(expected=3, quorum=2, rounds=FOREVER, exchanges=1, paced=True, forever=True)
    pacing = RoundPacing(Timetable(wall=lambda: now_s), policy, record, lambda: 0.0)
    record.declining = {f"cam-{number}": ("temperature", "84 C") for number in range(5)}
    said = []
    for _ in range(60):
        said.append(pacing.skip(Skip(ExchangeId(7, 0), "0 uploads came", opened=True)))
        now_s += 3600.0
    lines = [line for line in said if line is not None]
    assert lines[0] == (
        "round 8 is skipped for now: 0 uploads came; cam-0: 84 C; cam-1: 84 C; cam-2: 84 C; and 2 more decline"
    )
    assert [said.index(line) for line in lines] == [0, 24, 48]
    assert lines[1].startswith("round 8 is skipped for now since 22:00 on 2026-03-01 (UTC), 25 times: 0 uploads came")


def test_a_budget_that_never_suffices_is_said_with_what_would() -> None:
    _, watch = served(tables(every="1h", bytes_per_day=800, days=2.5))
    lines = [line for line in watch.notes if "federation.bytes_per_day is spent after 1 of the 24 rounds" in line]
    assert len(lines) == 1
    assert "raise it, or make every longer" in lines[0]


def test_a_budget_that_is_spent_before_the_first_round_of_a_day_is_said() -> None:
    _, watch = served(tables(every="1d", bytes_per_day=800, window="12:00-14:00", days=2.6))
    (line,) = [line for line in watch.notes if "before the first round" in line]
    assert line.startswith("federation.bytes_per_day was spent before the first round of the day, by ")
    assert line.endswith(" bytes outside of rounds: raise it")


@pytest.mark.parametrize(("known", "lines"), [({"done": 0}, 1), ({}, 0)])
def test_a_day_that_began_under_an_older_version_is_not_said_to_have_no_round(known: dict, lines: int) -> None:
    pace, record = RoundPace(bytes_per_day=100), RunRecord()
    record.pace, record.bytes_up["cam-0"] = {"day": "1970-01-01", "bytes": 0, "joules": 0.0, **known}, 200
    policy = RoundPolicy(expected=3, quorum=2, rounds=FOREVER, exchanges=1, paced=True, forever=True)
    pacing = RoundPacing(Timetable(pace=pace, wall=lambda: 0.0), policy, record, lambda: 0.0)
    assert len([*pacing.news()]) == lines


def test_hours_that_the_clocks_have_moved_are_said_once() -> None:
    pace = RoundPace(hours=OpenHours(22 * 60, 6 * 60), zone="Europe/Berlin")
    clock, record = SimpleNamespace(now_s=1_774_695_600.0), RunRecord()  # 2026-03-28 12:00
    policy = RoundPolicy(expected=3, quorum=2, rounds=FOREVER, exchanges=1, paced=True, forever=True)
    said: list[str] = []
    for step_s in (3600.0, 7 * 86_400.0):  # the second one is a restart
        pacing = RoundPacing(Timetable(pace=pace, wall=lambda: clock.now_s), policy, record, lambda: 0.0)
        for _ in range(36):
            pacing.asked(0.0, skipped=False)
            said += pacing.news()
            clock.now_s += step_s
    moved, summer, winter = "the clocks of Europe/Berlin have changed: ", "20:00-04:00", "21:00-05:00"
    assert said == [
        f"{moved}federation.window 22:00-06:00 is {now} UTC from now on, before it was {before} UTC"
        for now, before in ((summer, winter), (winter, summer))
    ]


def test_the_least_bytes_of_a_round_are_not_more_than_its_messages() -> None:
    about: dict[str, Any] = {"federation": "f", "device": "a", "round": 0, "exchange": 0}
    least = [Assign(**about), Upload(**about), Receipt(**about, verdict="accepted")]
    assert LEAST_ROUND_BYTES <= sum(len(codec.encode(each)) for each in least) < LEAST_ROUND_BYTES + 50


def test_hours_that_never_meet_those_of_enough_devices_are_refused() -> None:
    fleet = [
        {"count": 2, "model": "numpy-random", "available": "12:00-18:00"},
        {"count": 1, "model": "numpy-random"},
    ]
    with pytest.raises(UsageError, match=r"federation.window: .*02:00-04:00.* 1 of the 2 devices .*12:00-18:00"):
        parse(tables(every="1h", window="02:00-04:00", fleet=fleet), Path("f.toml"))
    parse(tables(every="1h", window="02:00-12:01", fleet=fleet), Path("f.toml"))
    parse(tables(every="1h", window="02:00-04:00", quorum=1, fleet=fleet), Path("f.toml"))
    parse(tables(every="1h", window="02:00-04:00", time_zone="Asia/Tokyo", fleet=fleet), Path("f.toml"))
