"""In a simulation every measured round has figures of all devices, whoever was asked in it."""

import dataclasses
from pathlib import Path

import fleets as tiny
import pytest

from coordinator.results.report.summary import summary
from edge_sim import run
from edge_sim.clock.whole_fleet import WholeFleet
from edge_sim.config import settings

DEVICES, ROUNDS = 5, 4


def tables(pictures, method, **federation):
    found = tiny.tables(pictures, method, devices=DEVICES, rounds=ROUNDS, participants=2, **federation)
    found["data"]["split"] = [8, 0, 2]
    if method in {"fedbabu", "fedper"}:  # they share what is in front of the last layer
        found["fleet"][0]["model"] = "mlp"
    return found


def result(found):
    return run(settings.parse(found, Path("f.toml")))


METHODS = ["fedavg", "ditto", "fednh", "fedbabu", "fedmd", "fedproto", "fedper", "fedal"]


@pytest.mark.parametrize("method", METHODS)
def test_every_round_has_figures_of_all_devices(pictures, method):
    found = result(tables(pictures, method))
    devices = {device.id for device in found.devices}
    assert found.completed
    for entry in found.history:
        assert entry.contributors <= 2
        assert set(entry.accuracy) == set(entry.local_accuracy) == devices
        assert {"amp", "fm", "wlp"} <= found.own_task(entry.local_accuracy).keys()
        if "global" in found.models:
            assert set(entry.global_accuracy) == set(entry.global_local_accuracy) == devices
            assert len(set(entry.global_accuracy.values())) == 1
    assert not any("measured" in warning for warning in summary(found)["warnings"])


@pytest.mark.parametrize("method", METHODS)
def test_measuring_the_others_costs_nothing_and_changes_nothing(pictures, monkeypatch, method):
    """What the asked devices measure, send and spend is the same with and without the others' figures."""
    seen = result(tables(pictures, method))
    with monkeypatch.context() as patch:
        patch.setattr(WholeFleet, "_measure", lambda *_: None)
        plain = result(tables(pictures, method))
    for whole, part in zip(seen.history, plain.history, strict=True):
        for name in ("accuracy", "local_accuracy", "global_accuracy", "global_local_accuracy"):
            assert getattr(part, name).items() <= getattr(whole, name).items()
        bare = {name: {} for name in ("accuracy", "local_accuracy", "pm_v", "pm_l", "global_accuracy")}
        bare["global_local_accuracy"] = {}
        assert dataclasses.replace(whole, **bare) == dataclasses.replace(part, **bare)
    assert [d.flops for d in seen.devices] == [d.flops for d in plain.devices]
    assert len(plain.history[0].accuracy) < DEVICES


def test_a_personal_model_that_was_not_trained_keeps_its_figures(pictures):
    found = result(tables(pictures, "fedper"))
    changed = [
        [device for device in now.accuracy if now.accuracy[device] != before.accuracy[device]]
        for before, now in zip(found.history, found.history[1:], strict=False)
    ]
    assert all(len(devices) <= 2 for devices in changed)


def test_rounds_between_evaluations_count_too(pictures):
    """A device that trained between two evaluations, but is not asked to measure, is measured as it is."""
    every = result(tables(pictures, "fedper"))
    sparse = tables(pictures, "fedper")
    sparse["train"]["evaluate_every"] = 2
    seldom = result(sparse)
    assert [entry.round for entry in seldom.history if entry.accuracy] == [2, 4]
    for entry in seldom.history:
        if entry.accuracy:
            assert entry.accuracy == every.history[entry.round - 1].accuracy


def test_a_stack_of_models_finds_the_same(pictures):
    pytest.importorskip("torch")
    one, other = tables(pictures, "fedavg"), tables(pictures, "fedavg")
    for each in (one, other):
        each["fleet"][0]["model"] = "mlp"
    other["run"]["stack"] = True
    for a, b in zip(result(one).history, result(other).history, strict=True):
        assert a.accuracy == pytest.approx(b.accuracy, abs=0.03)
        assert a.global_accuracy == pytest.approx(b.global_accuracy, abs=0.03)


def test_slots_have_both_means_after_every_round(pictures):
    """ACA and OCA are measured in every round; with all devices in every round they are the same model."""
    found = tables(pictures, "fedavg")
    found["method"] = {"cached": True}
    some = result(found)
    del found["federation"]["participants"]
    every = result(found)
    for entry in some.history + every.history:
        assert len(entry.global_accuracy) == len(entry.active_accuracy) == DEVICES
    assert [e.global_accuracy for e in every.history] == [e.active_accuracy for e in every.history]
    assert [e.global_accuracy for e in some.history] != [e.active_accuracy for e in some.history]


def test_the_mean_over_slots_is_what_arrives_at_the_end(pictures):
    """A run of two rounds measures as OCA after round 2, on devices, what a run of four finds there by itself."""
    long, short = tables(pictures, "fedavg"), tables(pictures, "fedavg")
    short["federation"]["rounds"] = 2
    for each in (long, short):
        each["method"] = {"cached": True}
    assert result(long).history[1].global_accuracy == result(short).history[1].global_accuracy
