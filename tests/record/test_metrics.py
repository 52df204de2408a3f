"""What papers measure by: worked numbers, and what must hold of any."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import fleets as tiny
import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from coordinator.record import metrics
from coordinator.record.metrics import Point
from coordinator.record.result import DeviceResult, Result, RoundResult
from coordinator.record.run_record import FleetWork, RunRecord
from coordinator.report.run_files import read_run, write_run
from coordinator.report.summary import summary
from edge_sdk.device.training.evaluation import personalised_accuracies, weighted_accuracy
from edge_sdk.protocol.knowledge import ClassRows
from edge_sim.config import settings
from edge_sim.runs.runner import run

SAMPLES = {"a": 10, "b": 30, "c": 60}
shares = st.floats(0, 1)
fleets = st.dictionaries(st.sampled_from("abcdefgh"), shares, min_size=1)


@pytest.mark.parametrize(
    ("accuracies", "amp", "fm", "wlp"),
    [((0.6, 0.7, 0.8), 0.7, 0.00667, 0.6), ((0.55, 0.65, 0.75), 0.65, 0.00667, 0.55)],  # FedKF's Table 2, w1 and w3
)
def test_the_example_of_fedkf(accuracies, amp, fm, wlp):
    found = metrics.over_devices(dict(zip("abc", accuracies, strict=True)), dict.fromkeys("abc", 20))
    assert found["amp"] == pytest.approx(amp)
    assert found["fm"] == pytest.approx(fm, abs=5e-6)
    assert found["wlp"] == wlp
    assert found["sd"] == pytest.approx(found["fm"] ** 0.5)


def test_amp_weighs_devices_by_their_samples_and_fm_does_not():
    accuracy = {"a": 1.0, "b": 0.5, "c": 0.0}
    assert metrics.averaged_performance(accuracy, SAMPLES) == pytest.approx(0.25)  # 0.1 + 0.15
    assert metrics.fairness(accuracy) == pytest.approx(1 / 6)
    assert metrics.averaged_performance(accuracy, {}) == pytest.approx(0.5)  # nobody tells


@given(fleets, st.lists(st.integers(1, 100), min_size=8, max_size=8))
def test_no_mixture_of_devices_scores_below_the_worst(accuracy, weights):
    """FedKF's Theorem 5.1, and the quantiles lie between the worst and the best."""
    samples = dict(zip("abcdefgh", weights, strict=True))
    found = metrics.over_devices(accuracy, samples)
    assert found["amp"] >= found["wlp"] - 1e-12
    quantiles = [found[f"q{share}"] for share in (10, 25, 50, 75, 90)]
    assert quantiles == sorted(quantiles)
    assert quantiles == pytest.approx(list(np.quantile(list(accuracy.values()), metrics.SHARES)))


def test_no_device_no_figure():
    assert metrics.over_devices({}, SAMPLES) == {}


def test_the_first_round_at_the_target_counts_even_if_accuracy_falls_again():
    points = [Point(1, 0.4, 10.0, 1.0), Point(2, 0.6, 20.0, 2.0), Point(3, 0.5, 30.0, 3.0), Point(4, 0.7, 40.0, 4.0)]
    assert metrics.to_target(points, 0.6) == points[1]
    assert metrics.to_target(points, 0.61) == points[3]
    assert metrics.to_target(points, 0.8) is None


def test_pm_v_weighs_held_classes_alike_and_pm_l_by_their_share():
    """Held: 3 of class 0, 1 of class 1; right on the test: 2 of 2, 1 of 2, and 0 of 2 of class 2."""
    truth = np.array([0, 0, 1, 1, 2, 2])
    right = np.array([True, True, True, False, False, False])
    found = personalised_accuracies(right, truth, np.array([3, 1, 0]))
    assert found == pytest.approx({"pm_v": 3 / 4, "pm_l": (0.75 * 2 + 0.25) / (0.75 * 2 + 0.25 * 2)})
    assert personalised_accuracies(right[4:], truth[4:], np.array([3, 1, 0])) == {}
    assert weighted_accuracy(right, truth, np.ones(3, np.float32)) == 0.5


def worked():
    """Two devices that learn and one that only teaches; two rounds."""
    devices = (
        DeviceResult(id="a", number=0, samples=10, accuracy=0.5, metrics={"local_accuracy": 0.9}, flops=600, busy_s=5),
        DeviceResult(id="b", number=1, samples=30, accuracy=0.7, metrics={"local_accuracy": 0.5}, flops=500, busy_s=3),
        DeviceResult(id="t", number=2, samples=99, accuracy=0.0, metrics={"local_accuracy": 0.0}, learns=False),
    )
    each = {"bytes_up": 300, "bytes_down": 600, "scalars_up": 70, "scalars_down": 140, "device_flops": 500}
    history = (
        RoundResult(round=1, accuracy={"a": 0.4, "b": 0.5, "t": 0.0}, virtual_s=2.0, device_s=3.0, **each),
        RoundResult(round=2, accuracy={"a": 0.5, "b": 0.7, "t": 0.0}, virtual_s=3.0, device_s=4.0, **each),
    )
    return Result(
        federation="f",
        method="m",
        seed=0,
        rounds=2,
        completed=True,
        rounds_done=2,
        devices=devices,
        history=history,
        scalars={"up": 150, "down": 420},
    )


def test_a_summary_has_them_all():
    whole = summary(worked())
    assert whole["own_task"]["amp"] == pytest.approx((10 * 0.9 + 30 * 0.5) / 40)
    assert whole["own_task"]["fm"] == pytest.approx(0.04)
    assert whole["own_task"]["wlp"] == 0.5
    assert whole["scalars"] == {"up_total": 150, "down_total": 420}
    assert whole["work"] == {
        "device_flops_total": 1100,  # what devices evaluate after the last round included
        "device_flops_per_round": 500,
        "device_s_total": 8.0,
        "device_s_per_round": 3.5,
    }
    # mean accuracies 0.45 and 0.6; 1800 bytes of three devices, 5 s
    spent = {"bytes_per_device": 600.0, "time_s": 5.0, "device_flops": 1000, "device_s": 7.0}
    assert whole["to_target"] == {
        "0.5": {"round": 2, "accuracy": pytest.approx(0.6), **spent},
        "0.6": {"round": 2, "accuracy": pytest.approx(0.6), **spent},
    }
    assert whole["per_device"][0]["metrics"] == {"local_accuracy": 0.9}


def test_what_nobody_metered_is_absent():
    bare = dataclasses.replace(synthetic.result(), history=(RoundResult(round=1),), devices=())
    whole = summary(bare)
    assert (whole["work"], whole["own_task"], whole["to_target"]) == ({}, {}, {})


def test_a_round_has_the_work_and_the_numbers_of_that_round_alone():
    rows = ClassRows(
        classes=np.array([0, 2], np.int32), rows=np.zeros((2, 5), np.float32), counts=np.array([1, 4], np.int32)
    )
    record = RunRecord()
    record.begun(2.0)
    record.travelled("up", {"rows": rows})
    record.travelled("down", {"rows": rows, "more": rows})
    first = record.round_done(1, 1, 5.0, FleetWork(350, 2.5))
    record.travelled("up", {"rows": rows})
    second = record.round_done(1, 1, 6.0, FleetWork(400, 3.0))
    assert (first.scalars_up, first.scalars_down, first.device_flops, first.device_s) == (10, 20, 350, 2.5)
    assert (second.scalars_up, second.scalars_down, second.device_flops, second.device_s) == (10, 0, 50, 0.5)
    assert (first.wall_s, second.wall_s) == (3.0, 1.0)


def test_a_simulation_meters_every_round_and_a_file_keeps_it(pictures, tmp_path):
    """FedMD with a public batch of 8: each of 3 devices sends 8 x 4 logits a round, and receives as many."""
    result = run(tiny.config(pictures, "fedmd", 3))
    for entry in result.history:
        assert (entry.scalars_up, entry.scalars_down % 96) == (96, 0)
        assert entry.device_flops > 0
        assert 0 < entry.device_s < 3 * entry.virtual_s
        assert entry.wall_s == 0
        assert set(entry.local_accuracy) == {device.id for device in result.devices}
    assert result.devices[0].metrics["pm_v"] == result.devices[0].metrics["local_accuracy"]  # no test of its own
    write_run(result, "", tmp_path)
    assert read_run(tmp_path) == result


def test_gm_is_what_all_devices_found_of_one_model():
    assert metrics.global_model({"a": 0.5, "b": 0.5}) == 0.5
    assert metrics.global_model({"a": 0.5, "b": 0.6}) is None
    assert metrics.global_model({}) is None


@pytest.mark.parametrize(
    ("method", "known"), [("fedavg", True), ("fednh", True), ("lg_fedavg", False), ("ditto", True), ("fedmd", False)]
)
def test_gm_by_round_and_at_the_end(pictures, tmp_path, method, known):
    tables = tiny.tables(pictures, method, devices=3, rounds=3)
    found = run(settings.parse(tables, Path("f.toml")))
    write_run(found, "", tmp_path)
    with (tmp_path / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    gm = summary(found)["accuracy"].get("gm")
    assert (gm is not None) is known
    if known:
        assert [float(row["gm"]) for row in rows] == pytest.approx([float(row["global_mean"]) for row in rows])
        assert float(rows[-1]["gm"]) == pytest.approx(gm)
    else:
        assert [row["gm"] for row in rows] == [""] * 3
    assert summary(read_run(tmp_path)) == summary(found)
    last = rows[-1]
    assert float(last["sd"]) == pytest.approx(summary(found)["own_task"]["sd"])
    assert float(last["q50"]) == pytest.approx(summary(found)["own_task"]["q50"])
    assert float(last["pm_v_mean"]) == pytest.approx(summary(found)["metrics"]["pm_v_mean"])
    assert float(last["pm_l_mean"]) == pytest.approx(summary(found)["metrics"]["pm_l_mean"])
