"""Samples with an age limit: they leave after it, whatever restarts, power cuts and clocks do."""

from __future__ import annotations

import shutil
from datetime import timedelta

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.samples.reservoir import Reservoir
from edge_sdk.samples.store import SampleStore

DAY_S = 86_400.0
START_S = 1_772_402_400.0


class Times:
    """The clocks of a device; `pass_s` moves both, `off_s` only the wall's, as a device that is off."""

    def __init__(self) -> None:
        self.mono_s, self.wall_s = 100.0, START_S

    def pass_s(self, seconds: float) -> None:
        self.mono_s += seconds
        self.wall_s += seconds

    def off_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.mono_s = 5.0


def store_at(path, times: Times, *, days: float | None = 10.0, **more) -> SampleStore:
    return SampleStore(
        path,
        classes=4,
        split=(1.0, 0.0, 0.0),
        max_age=None if days is None else timedelta(days=days),
        clock=lambda: times.mono_s,
        wall=lambda: times.wall_s,
        **more,
    )


def see(store: SampleStore, *numbers: int) -> None:
    for number in numbers:
        store.observe(np.full(4, number, np.float32), number % 4)


def held(store: SampleStore) -> list[int]:
    return sorted(store.take_snapshot().data.train.x[:, 0].astype(int).tolist())


def test_a_sample_leaves_after_its_age() -> None:
    times = Times()
    store = store_at(None, times)
    see(store, 1)
    times.pass_s(6 * DAY_S)
    see(store, 2)
    times.pass_s(3.9 * DAY_S)
    assert held(store) == [1, 2]
    times.pass_s(0.2 * DAY_S)
    assert held(store) == [2]
    times.pass_s(30 * DAY_S)
    assert held(store) == []
    see(store, 3)
    assert held(store) == [3]


def test_one_that_waits_for_its_label_leaves_too() -> None:
    times = Times()
    store = store_at(None, times)
    name = store.observe(np.zeros(4, np.float32))
    times.pass_s(11 * DAY_S)
    store.take_snapshot()
    assert not store.label(name, 1)


def test_the_time_off_counts(tmp_path) -> None:
    times = Times()
    with store_at(tmp_path / "s.db", times) as store:
        see(store, 1)
        times.pass_s(2 * DAY_S)
        see(store, 2)
    times.off_s(8.5 * DAY_S)
    with store_at(tmp_path / "s.db", times) as store:
        assert held(store) == [2]


def test_a_power_cut_loses_no_age(tmp_path) -> None:
    times = Times()
    store = store_at(tmp_path / "s.db", times, unsaved=1)
    see(store, 1)
    times.pass_s(9 * DAY_S)
    see(store, 2)
    shutil.copytree(tmp_path, tmp_path / "cut")
    times.off_s(2 * DAY_S)
    with store_at(tmp_path / "cut" / "s.db", times) as found:
        assert held(found) == [2]
    store.close()


@pytest.mark.parametrize("step_s", [-400 * DAY_S, 400 * DAY_S])
def test_a_clock_that_is_wrong_for_less_than_an_hour_changes_no_age(step_s: float) -> None:
    times = Times()
    store = store_at(None, times)
    see(store, 1)
    times.wall_s += step_s
    for _ in range(5):
        times.pass_s(600)
        see(store, 2)
        assert held(store) == [1, 2]
    times.wall_s -= step_s
    for _ in range(5):
        times.pass_s(DAY_S)
        assert held(store) == [1, 2]


def test_a_clock_that_is_set_right_after_the_start_ages_what_was_there_and_not_what_came_since(tmp_path) -> None:
    """A board without a clock of its own starts in 1970, until it has asked the network."""
    times = Times()
    with store_at(tmp_path / "s.db", times) as store:
        see(store, 1)
    true_s = times.wall_s + 20 * DAY_S
    times.mono_s, times.wall_s = 5.0, 0.0
    with store_at(tmp_path / "s.db", times) as store:
        see(store, 2)
        assert held(store) == [1, 2]
        times.pass_s(60)
        times.wall_s = true_s
        for _ in range(3):
            times.pass_s(2000)
            found = held(store)
        assert found == [2]
        times.pass_s(9.5 * DAY_S)
        assert held(store) == [2]
        times.pass_s(DAY_S)
        assert held(store) == []


def test_a_clock_that_was_set_back_for_good_still_ages(tmp_path) -> None:
    times = Times()
    with store_at(tmp_path / "s.db", times) as store:
        see(store, 1)
        times.wall_s -= 100 * DAY_S
        for _ in range(3):
            times.pass_s(3000)
            assert held(store) == [1]
    times.off_s(11 * DAY_S)
    with store_at(tmp_path / "s.db", times) as store:
        assert held(store) == []


def test_samples_from_before_the_limit_count_from_its_first_day(tmp_path) -> None:
    times = Times()
    with store_at(tmp_path / "s.db", times, days=None) as store:
        see(store, 1)
    times.off_s(50 * DAY_S)
    for wait, found in ((9, [1]), (2, [])):
        with store_at(tmp_path / "s.db", times) as store:
            times.pass_s(wait * DAY_S)
            assert held(store) == found


def test_what_is_kept_about_ages_does_not_grow(tmp_path) -> None:
    times = Times()
    store = store_at(tmp_path / "s.db", times, unsaved=1)
    sizes = []
    for number in range(3000):
        times.pass_s(3600)
        see(store, number)
        if number % 1000 == 999:
            store.take_snapshot()
            store.release(store.take_snapshot().id)
            sizes.append(len(store._file.settings()["ages"]["marks"]))
            assert 237 <= len(store) <= 240  # ages are known to a hundredth
    assert max(sizes) <= 101
    store.close()


def test_a_reservoir_forgets_what_was_removed() -> None:
    reservoir = Reservoir(100, 0)
    for number in range(5000):
        reservoir.add(str(number), 0)
        if number >= 10:
            reservoir.remove(str(number - 10), 0)
    assert sum(map(len, reservoir._highest.values())) < 50


@pytest.mark.parametrize("wrong", [30, "30d", timedelta(seconds=1), timedelta(days=-1)])
def test_an_age_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(UsageError, match=r"max_age .*timedelta"):
        SampleStore(None, classes=2, max_age=wrong)


def test_many_restarts_keep_few_marks(tmp_path) -> None:
    times = Times()
    for number in range(400):
        with store_at(tmp_path / "s.db", times) as store:
            see(store, number)
        times.off_s(600)
    with store_at(tmp_path / "s.db", times) as store:
        assert len(store._ages.to_json()["marks"]) < 40
        times.pass_s(9.9 * DAY_S)
        store.take_snapshot()
        assert 0 < len(store) < 400
