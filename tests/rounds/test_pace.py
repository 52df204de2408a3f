"""When rounds may open: every so often, within hours of a time zone whose clocks change, and within a day's budget."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from coordinator.rounds.pace import DaySpent, OpenHours, RoundPace, next_opening

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = OpenHours(22 * 60, 6 * 60)
NOTHING = DaySpent()


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def opens(pace: RoundPace, now_s: float, last_s: float | None = None, spent: DaySpent = NOTHING) -> str:
    found = next_opening(pace, now_s, last_s, spent)
    assert (found.at_s > now_s) == bool(found.why)
    return datetime.fromtimestamp(found.at_s, BERLIN).strftime("%m-%d %H:%M %z")


def night(**more: float) -> RoundPace:
    return RoundPace(hours=NIGHT, zone="Europe/Berlin", **more)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ("2026-01-10 12:00", "01-10 22:00 +0100"),
        ("2026-01-10 23:30", "01-10 23:30 +0100"),
        ("2026-01-10 05:59", "01-10 05:59 +0100"),
        ("2026-01-10 06:00", "01-10 22:00 +0100"),
        ("2026-03-28 12:00", "03-28 22:00 +0100"),
        ("2026-03-29 12:00", "03-29 22:00 +0200"),  # the clocks have changed that night
        ("2026-10-25 12:00", "10-25 22:00 +0100"),
    ],
)
def test_hours_follow_the_time_zone(now: str, then: str) -> None:
    assert opens(night(), at(now)) == then


def test_hours_that_a_clock_change_leaves_out_do_not_open_that_day() -> None:
    pace = RoundPace(hours=OpenHours(2 * 60, 3 * 60), zone="Europe/Berlin")
    assert opens(pace, at("2026-03-29 01:00")) == "03-30 02:00 +0200"


def test_hours_that_begin_in_the_missing_hour_open_at_the_change() -> None:
    pace = RoundPace(hours=OpenHours(2 * 60 + 30, 6 * 60), zone="Europe/Berlin")
    assert opens(pace, at("2026-03-29 01:00")) == "03-29 03:00 +0200"


def test_a_repeated_hour_opens_twice() -> None:
    pace = RoundPace(hours=OpenHours(2 * 60, 2 * 60 + 30), zone="Europe/Berlin")
    assert opens(pace, at("2026-10-25 01:00")) == "10-25 02:00 +0200"
    assert opens(pace, at("2026-10-25 02:40", fold=0)) == "10-25 02:00 +0100"


def test_rounds_keep_their_distance_and_the_hours() -> None:
    pace = night(every_s=3600.0)
    assert opens(pace, at("2026-01-10 23:10"), at("2026-01-10 23:00")) == "01-11 00:00 +0100"
    assert opens(pace, at("2026-01-10 05:40"), at("2026-01-10 05:30")) == "01-10 22:00 +0100"
    assert opens(pace, at("2026-01-11 00:30"), at("2026-01-10 23:00")) == "01-11 00:30 +0100"


def test_a_clock_that_was_set_back_delays_no_round_for_long() -> None:
    pace = RoundPace(every_s=3600.0, zone="Europe/Berlin")
    assert opens(pace, at("2026-01-10 12:00"), at("2031-01-10 12:00")) == "01-10 13:00 +0100"


def test_a_spent_budget_waits_for_the_next_day_of_the_time_zone() -> None:
    pace = RoundPace(bytes_per_day=1000, zone="Europe/Berlin")
    assert opens(pace, at("2026-03-28 12:00"), spent=DaySpent(999)) == "03-28 12:00 +0100"
    assert opens(pace, at("2026-03-28 12:00"), spent=DaySpent(1000)) == "03-29 00:00 +0100"
    found = next_opening(pace, at("2026-03-28 12:00"), None, DaySpent(1200))
    assert found.why == "1200 bytes were spent today, federation.bytes_per_day is 1000"
    joules = RoundPace(joules_per_day=5.0, zone="Europe/Berlin")
    assert opens(joules, at("2026-03-29 12:00"), spent=DaySpent(0, 5.0)) == "03-30 00:00 +0200"


def test_a_spent_budget_and_hours_together() -> None:
    pace = night(bytes_per_day=1000)
    assert opens(pace, at("2026-01-10 23:00"), spent=DaySpent(1000)) == "01-11 00:00 +0100"
    assert opens(pace, at("2026-01-10 05:00"), spent=DaySpent(1000)) == "01-11 00:00 +0100"


def test_a_year_opens_every_night() -> None:
    """Every night of a year opens, those with clock changes included, and nothing opens by day."""
    pace, now_s, days = night(), at("2026-01-01 12:00"), set()
    while now_s < at("2027-01-01 06:00"):
        found = next_opening(pace, now_s, None, NOTHING)
        local = datetime.fromtimestamp(found.at_s, BERLIN)
        assert local.hour >= 22 or local.hour < 6
        days.add((local - timedelta(hours=12)).date())
        now_s = found.at_s + 8 * 3600 + 60
    assert len(days) == 365
