"""The page of a run that goes on: what the coordinator tells of its devices and of the open exchange."""

from __future__ import annotations

import fleets
import pytest

from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.results.page.feed import EVERY_S, IDLE_S, Feed
from coordinator.results.page.live import PageObserver
from coordinator.results.page.values import device_columns, round_columns
from coordinator.results.report.progress_file import About

ABOUT = About(federation="tiny", method="fedmd", seed=7, rounds=3, expected=3)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class EveryState(Feed):
    """A feed that keeps all that is published."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.states = []

    def publish(self, state):
        self.states.append(state)
        super().publish(state)


class Passing(RunObserver):
    """Lets time pass before the page is asked."""

    def __init__(self, clock, step_s):
        self.clock, self.step_s = clock, step_s

    def waited(self, record):
        del record
        self.clock.now_s += self.step_s


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return fleets.write_pictures(tmp_path_factory.mktemp("page") / "pictures.npz")


def seen(pictures, *, step_s=IDLE_S, power_cut=None, **federation):
    """All states of a run of three devices."""
    clock = Clock()
    feed = EveryState(clock)
    page = PageObserver(feed, ABOUT, "runs/tiny", virtual=True, links={"device-00": "wifi"}, clock=clock)
    observer = ObserverGroup(Passing(clock, step_s), page)
    run = fleets.Run(fleets.built(pictures, "fedmd", 3, **federation), observer=observer)
    if power_cut:
        run.power_cut(*power_cut)
    run.finished()
    return feed.states


def column(state, name):
    return {device: row[device_columns().index(name)] for device, row in state.devices.items()}


def test_devices_appear_train_and_are_measured(pictures):
    states = seen(pictures)
    words = [set(column(state, "state").values()) for state in states]
    assert {"expected"} in words
    assert any("training" in each for each in words)
    last = states[-1]
    assert last.head["round"] == 3
    assert None not in column(last, "accuracy").values()
    assert column(last, "link") == {"device-00": "wifi", "device-01": None, "device-02": None}
    assert [row[0] for row in last.history] == [1, 2, 3]
    assert last.history[-1][round_columns().index("mean")] > 0


def test_the_open_exchange_names_who_is_awaited(pictures):
    awaited = [state.round for state in seen(pictures) if state.round["phase"] == "collecting"]
    assert any(each["awaited"] and each["awaited_count"] == len(each["awaited"]) for each in awaited)
    assert {each["needed"] for each in awaited} == {3}
    assert all(each["due_s"] is not None for each in awaited)


def test_a_device_that_loses_its_power_is_absent_and_comes_back(pictures):
    took_s = seen(pictures, rounds=8)[-1].head["now_s"]
    states = seen(pictures, power_cut=("device-01", took_s / 3, 40.0), deadline_s=30, rounds=8)
    words = [column(state, "state").get("device-01") for state in states]
    assert "absent" in words
    assert any(word in ("training", "waiting") for word in words[words.index("absent") :])
    absent = states[words.index("absent")]
    assert column(absent, "why")["device-01"]


def test_states_are_made_at_most_once_a_second_and_seldom_while_nobody_looks():
    class View:
        """A coordinator that must not be asked too often."""

    clock = Clock()
    feed = Feed(clock=clock)
    page = PageObserver(feed, ABOUT, "", virtual=False, clock=clock)
    made = []
    page.state = lambda _view: made.append(clock.now_s) or feed.newest
    page.begun(View())
    for _ in range(100):
        page.waited(None)
        clock.now_s += 0.1
    idle = len(made)
    made.clear()
    for _ in range(100):
        feed.newer_than(None)
        page.waited(None)
        clock.now_s += 0.1
    assert idle <= 10 / IDLE_S + 1
    assert 10 / EVERY_S - 2 <= len(made) <= 10 / EVERY_S + 1
