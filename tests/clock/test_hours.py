"""Windows of the virtual day, and clocks that are wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import UsageError
from edge_sim.clock.clock import LocalClock, VirtualClock
from edge_sim.config.device_conditions import DAY_S, read_time, read_window

MINUTES = st.integers(0, 24 * 60 - 1)


def words(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def test_a_night_is_open_over_midnight() -> None:
    night = read_window("22:00-06:00", "w")
    assert [night.holds(3600.0 * hour) for hour in (0, 5.99, 6, 12, 21.99, 22, 23)] == [1, 1, 0, 0, 0, 1, 1]
    assert night.length_s == 8 * 3600
    assert night.next_edge(0.0, 0.0) == (6 * 3600.0, False)
    assert night.next_edge(6 * 3600.0, 0.0) == (22 * 3600.0, True)
    assert night.next_edge(0.0, 20 * 3600.0) == (2 * 3600.0, True)  # the run begins at eight in the evening


@given(MINUTES, MINUTES, MINUTES, st.floats(0, 1e7))
def test_edges_alternate_and_say_what_holds(opens: int, closes: int, starts: int, now_s: float) -> None:
    if opens == closes:
        return
    window, starts_s = read_window(f"{words(opens)}-{words(closes)}", "w"), 60.0 * starts
    first_s, first = window.next_edge(now_s, starts_s)
    second_s, second = window.next_edge(first_s, starts_s)
    assert now_s < first_s < second_s
    assert first_s - now_s <= DAY_S
    assert first != second
    assert window.holds(first_s + starts_s) == first
    assert window.holds((first_s + second_s) / 2 + starts_s) == first


@pytest.mark.parametrize("text", ["22-06", "22:00", "24:00-06:00", "22:00-06:60", "06:00-06:00", "00:00-24:00", ""])
def test_no_window(text: str) -> None:
    with pytest.raises(UsageError, match=r"^fleet\[0\].available: "):
        read_window(text, "fleet[0].available")


def test_a_window_may_end_at_24_00() -> None:
    assert read_window("22:00-24:00", "w").length_s == 2 * 3600
    assert read_window("22:00-24:00", "w").next_edge(23 * 3600.0, 0.0) == (DAY_S, False)


def test_no_time() -> None:
    assert read_time("18:30", "t") == 18.5 * 3600
    with pytest.raises(UsageError, match=r"^t: .*\"22:00\".*'7pm'$"):
        read_time("7pm", "t")


@given(
    st.floats(0, 1e9),
    st.floats(0, 1e7),
    st.floats(-1e9, 1e9),
    st.one_of(st.just(0.0), st.floats(-0.5, 1.0)),
)
def test_an_alarm_never_rings_before_its_time(now_s: float, wait_s: float, offset_s: float, drift: float) -> None:
    clock = VirtualClock(now_s)
    own = LocalClock(clock, offset_s=offset_s, drift=drift)
    due_s = own.now_s + wait_s
    clock.now_s = own.true_s(due_s)
    assert own.now_s >= due_s
    assert own.now_s - due_s < 1e-3
    assert clock.now_s >= now_s - 1e-5


def test_a_clock_that_is_right_shows_virtual_time_exactly() -> None:
    clock = VirtualClock(0.1 + 0.2)
    own = LocalClock(clock)
    assert own.now_s == clock.now_s
    assert own.true_s(own.now_s) == clock.now_s
