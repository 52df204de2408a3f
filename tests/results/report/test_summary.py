"""The summary: its contract, worked figures, and nothing that is not known."""

import dataclasses
import json
import math

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from coordinator.record.round_result import RoundResult
from coordinator.results.figures.intervals import spread_of
from coordinator.results.figures.metrics import over_devices
from coordinator.results.figures.result import DeviceResult, Result, spread
from coordinator.results.report.summary import summary, without_times

CONTRACT = {
    "version",
    "federation",
    "method",
    "seed",
    "rounds",
    "devices",
    "completed",
    "accuracy",
    "metrics",
    "bytes",
    "time",
    "updates",
    "per_device",
    "data",
    "versions",
}
DEVICE_CONTRACT = {
    "id",
    "board",
    "model",
    "runtime",
    "samples",
    "classes",
    "accuracy",
    "standalone_accuracy",
    "bytes_up",
    "bytes_down",
    "rounds_done",
}


def two_devices():
    return Result(
        federation="f",
        method="fedmd",
        seed=3,
        rounds=4,
        completed=True,
        rounds_done=4,
        devices=(
            DeviceResult(
                id="a",
                number=0,
                samples=30,
                class_counts=(10, 0, 20),
                accuracy=0.5,
                standalone_accuracy=0.25,
                bytes_up=100,
                bytes_down=40,
                rounds_done=4,
            ),
            DeviceResult(id="b", number=1, accuracy=0.75, standalone_accuracy=0.25, bytes_up=20, rounds_done=2),
            DeviceResult(id="t", number=2, learns=False, accuracy=0.99, standalone_accuracy=0.99, rounds_done=4),
        ),
        history=(
            RoundResult(round=1, accuracy={"a": 0.4}, exchanges=3),
            RoundResult(round=2, accuracy={"a": 0.5, "b": 0.75}, exchanges=3),
        ),
    )


def test_the_contract_is_kept_and_json_takes_it():
    whole = summary(synthetic.result())
    assert set(whole) >= CONTRACT
    assert set(whole) >= {"refused_frames", "refused_devices", "warnings", "transport", "exchange", "reason"}
    assert whole["version"] == 1
    assert whole["devices"] == 8
    assert set(whole["accuracy"]) == {"standalone_mean", "mean", "min", "max", "std", "worst"}
    assert set(whole["bytes"]) == {"up_total", "down_total", "up_per_device_round", "down_per_device_round"}
    assert set(whole["time"]) == {"wall_s", "virtual_s", "start_s"}
    assert set(whole["updates"]) == {"accepted", "duplicate", "stale", "refused", "withheld"}
    for entry in whole["per_device"]:
        assert set(entry) >= DEVICE_CONTRACT | {"class_counts", "note", "link", "number"}
        assert entry["classes"] == 3
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_worked_figures():
    whole = summary(two_devices())
    # a teacher counts in no mean: (0.5 + 0.75) / 2, population std 0.125, the worst tenth of two is one
    assert whole["accuracy"] == {
        "standalone_mean": 0.25,
        "mean": 0.625,
        "min": 0.5,
        "max": 0.75,
        "std": 0.125,
        "worst": 0.5,
    }
    assert whole["bytes"] == {
        "up_total": 120,
        "down_total": 40,
        "up_per_device_round": 12.0,
        "down_per_device_round": 4.0,
    }
    assert whole["exchange"] == {"total": 6, "per_round": 3}
    assert whole["updates"] == {"accepted": 0, "duplicate": 0, "stale": 0, "refused": 0, "withheld": 0}
    assert whole["per_device"][0]["classes"] == 2
    assert two_devices().devices[0].classes == (0, 2)
    assert two_devices().learners == {"a", "b"}


def test_absent_where_unknown():
    bare = Result(
        federation="f",
        method="local",
        seed=0,
        rounds=1,
        completed=False,
        rounds_done=0,
        devices=(DeviceResult(id="a", number=0),),
        metrics={"loss": float("nan"), "known": 1.0},
    )
    whole = summary(bare)
    assert whole["accuracy"] == {}
    assert whole["metrics"] == {"known": 1.0}
    assert "up_per_device_round" not in whole["bytes"]
    assert not {"accuracy", "standalone_accuracy", "classes", "class_counts"} & set(whole["per_device"][0])
    assert summary(dataclasses.replace(bare, devices=()))["accuracy"] == {}


def test_the_baseline_is_taken_over_the_devices_that_were_evaluated():
    """A device that was lost would else weigh on one side of the comparison only."""
    devices = (
        DeviceResult(id="a", number=0, accuracy=0.8, standalone_accuracy=0.4),
        DeviceResult(id="lost", number=1, standalone_accuracy=0.1),
        DeviceResult(id="odd", number=2, accuracy=float("nan"), standalone_accuracy=0.1),
    )
    assert summary(dataclasses.replace(two_devices(), devices=devices))["accuracy"]["standalone_mean"] == 0.4


@pytest.mark.parametrize(("count", "worst"), [(1, 1.0), (9, 1.0), (19, 1.0), (20, 1.5), (30, 2.0)])
def test_worst_is_the_lowest_tenth_but_one_at_least(count, worst):
    assert spread([float(value) for value in range(count, 0, -1)])["worst"] == worst


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_without_a_finite_value_there_is_no_deviation(odd):
    """Python's statistics raise AttributeError there."""
    assert math.isnan(spread([0.5, odd])["std"])
    assert math.isnan(over_devices({"a": 0.5, "b": odd}, {"a": 1, "b": 1}, every=True)["sd"])
    found = spread_of([0.5, odd])
    assert found is not None
    assert math.isnan(found.sd)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.randoms())
def test_spread_is_ordered_and_blind_to_order(values, random):
    figures = spread(values)
    assert figures["min"] <= figures["worst"] <= figures["mean"] * (1 + 1e-12) <= figures["max"] * (1 + 2e-12)
    assert 0 <= figures["std"] <= 0.5
    random.shuffle(values)
    assert spread(values) == figures


def test_without_times_is_blind_to_the_clock_and_to_nothing_else():
    result = synthetic.result()
    later = dataclasses.replace(
        result,
        time={"wall_s": 99.0, "virtual_s": 250.0, "start_s": 2e9},
        versions={"numpy": "9"},
        metrics=result.metrics | {"server_s": 4.0},
        history=tuple(dataclasses.replace(entry, wall_s=7.0) for entry in result.history),
    )
    assert summary(result) != summary(later)
    assert without_times(summary(result)) == without_times(summary(later))
    for change in ({"seed": 1}, {"devices": result.devices[1:]}, {"updates": {"accepted": 1}}, {"metrics": {}}):
        other = dataclasses.replace(result, **change)
        assert without_times(summary(result)) != without_times(summary(other))
