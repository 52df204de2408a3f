"""What the page is told: states, and what has changed between two of them."""

import json
from dataclasses import replace

import pytest
import synthetic
from page_parts import a_state

from coordinator.record.round_result import Missed, RoundResult
from coordinator.results.page.feed import LOOKS_S, Feed
from coordinator.results.page.values import HistoryRows, device_row, finished_state, round_columns, round_row


def test_a_browser_that_knows_nothing_gets_everything():
    feed = Feed(a_state())
    found = feed.newer_than(None)
    assert found.event == "state"
    assert len(json.loads(found.text)["devices"]) == 2
    assert feed.newer_than(found.number) is None


def test_a_browser_that_is_up_to_date_gets_only_the_rows_that_changed():
    feed, old = Feed(a_state()), a_state()
    number = feed.newer_than(None).number
    changed = dict(old.devices) | {"device-1": device_row(id="device-1", state="absent")}
    feed.publish(replace(old, devices=changed, head={**old.head, "round": 2}))
    found = feed.newer_than(number)
    plain = json.loads(found.text)
    assert found.event == "change"
    assert [row[0] for row in plain["devices"]] == ["device-1"]
    assert plain["head"]["round"] == 2
    assert "ledger" not in plain


def test_who_missed_what_is_sent_where_it_has_changed_and_of_a_finished_run():
    missed = tuple(Missed(number, 1, "device-1", "it is off") for number in range(1, 80))
    feed, old = Feed(a_state()), a_state()
    number = feed.newer_than(None).number
    feed.publish(replace(old, missed=missed[:1]))
    assert json.loads(feed.newer_than(number).text)["missed"] == [[1, 1, "device-1", "it is off"]]
    result = replace(synthetic.result(count=2, rounds=1), missed=missed)
    assert finished_state(result, "here").missed == missed[-50:]


def test_a_browser_that_missed_a_state_gets_everything():
    feed = Feed(a_state())
    number = feed.newer_than(None).number
    for round_ in (2, 3):
        feed.publish(a_state(round=round_))
        last = feed.newer_than(None)
    assert last.number == number + 2
    assert feed.newer_than(number).event == "state"


def test_a_device_that_is_forgotten_goes():
    feed = Feed(a_state())
    number = feed.newer_than(None).number
    feed.publish(a_state(("device-0",)))
    assert json.loads(feed.newer_than(number).text)["gone"] == ["device-1"]


def test_a_figure_that_is_not_finite_is_unknown():
    feed = Feed(a_state(accuracy=float("nan")))
    assert json.loads(feed.newer_than(None).text)["head"]["accuracy"] is None


def test_a_finished_run_with_an_accuracy_that_is_no_number_is_shown():
    result = synthetic.result()
    devices = (replace(result.devices[0], accuracy=float("nan")), *result.devices[1:])
    rounds = (replace(result.history[0], accuracy={result.devices[0].id: float("nan"), result.devices[1].id: 0.5}),)
    state = finished_state(replace(result, devices=devices, history=rounds), "runs/demo")
    assert json.loads(Feed(state).newer_than(None).text)["head"]["accuracy"] is None


def test_a_feed_is_watched_while_browsers_look():
    now = [100.0]
    feed = Feed(a_state(), clock=lambda: now[0])
    assert not feed.watched
    feed.newer_than(None)
    assert feed.watched
    now[0] += LOOKS_S
    assert not feed.watched


def test_means_are_taken_over_the_devices_that_learn():
    entry = RoundResult(round=1, accuracy={"a": 0.4, "b": 0.8, "teacher": 0.9})
    row = dict(zip(round_columns(), round_row(entry, learners={"a", "b"}), strict=True))
    assert row["mean"] == pytest.approx(0.6)
    assert (row["worst"], row["best"], row["global"]) == (0.4, 0.8, None)


def test_a_round_is_made_again_when_another_device_has_measured_it():
    history, curves = HistoryRows(), {"accuracy": {1: {"a": 0.4}}}
    rounds = [RoundResult(round=1), RoundResult(round=2)]
    place = round_columns().index("mean")
    first = history.rows(rounds, lambda name: curves.get(name, {}))
    assert [row[place] for row in first] == [0.4, None]
    curves["accuracy"][1]["b"] = 0.8
    again = history.rows(rounds, lambda name: curves.get(name, {}))
    assert again[0][place] == pytest.approx(0.6)
    assert again[1] is first[1]
