"""The instruments of methods: in which rounds, from whom, what is warned about, and what is written and read back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from laws import spec_of

from coordinator.record.round_result import COORDINATOR
from coordinator.results.figures.result import Result
from coordinator.results.plots import plots
from coordinator.results.report.run_files import read_run, write_run
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.methods.fednh import prototype_instruments
from edge_sdk.methods.fedssa import Params, header_instruments
from edge_sim.config import settings


def run(pictures: Path, method: str, **train: Any) -> Result:
    tables = fleets.tables(pictures, method)
    tables["federation"]["rounds"] = 4
    tables["train"] |= train
    tables["method"] |= {"proxy": "softmax"} if method == "fml" else {}
    return fleets.Run(settings.parse(tables, Path("test.toml"))).finished().result


@pytest.fixture(scope="module")
def fedprox(pictures: Path) -> Result:
    return run(pictures, "fedprox", instrument_every=3)


def test_they_are_read_in_the_second_every_third_and_the_last_round(fedprox):
    assert [bool(entry.instruments) for entry in fedprox.history] == [False, True, True, True]


def test_every_device_tells_its_shares(fedprox):
    found = fedprox.history[-1].instruments
    assert found.keys() == {"share.private.cross-entropy", "share.private.proximal"}
    for device in fedprox.learners:
        assert sum(by_source[device] for by_source in found.values()) == pytest.approx(1)


def test_a_term_that_does_nothing_is_named(pictures):
    idle = run(pictures, "fedprox", learning_rate=1e-5)
    assert [warning for warning in idle.warnings if "W19" in warning and "proximal" in warning]


def test_both_models_of_fml_tell_their_shares_at_no_cost(pictures):
    on, off = (run(pictures, "fml", instrument_every=every) for every in (3, 0))
    found = on.history[-1].instruments
    assert found.keys() == {
        f"share.private.{role}.{term}" for role in ("own", "proxy") for term in ("cross-entropy", "distill")
    }
    for device in on.learners:
        assert sum(by_source[device] for by_source in found.values()) == pytest.approx(2)
    assert [device.flops for device in on.devices] == [device.flops for device in off.devices]
    assert [entry.accuracy for entry in on.history] == [entry.accuracy for entry in off.history]


def test_they_can_be_switched_off(pictures):
    off = run(pictures, "fedprox", instrument_every=0)
    assert not any(entry.instruments for entry in off.history)


def test_they_change_no_result(pictures, fedprox):
    off = run(pictures, "fedprox", instrument_every=0)
    assert [entry.accuracy for entry in off.history] == [entry.accuracy for entry in fedprox.history]
    assert [device.flops for device in off.devices] == [device.flops for device in fedprox.devices]


def test_a_run_directory_keeps_them(fedprox, tmp_path):
    write_run(fedprox, "", tmp_path)
    assert [entry.instruments for entry in read_run(tmp_path).history] == [
        entry.instruments for entry in fedprox.history
    ]


def test_a_run_directory_from_before_reads(fedprox, tmp_path):
    write_run(fedprox, "", tmp_path)
    (tmp_path / "instruments.csv").unlink()
    assert not any(entry.instruments for entry in read_run(tmp_path).history)


@pytest.mark.usefixtures("figures")
def test_the_picture_has_its_points_beside_it(fedprox, tmp_path):
    plots.draw_run(fedprox, tmp_path)
    with (tmp_path / "instruments_by_round.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["instrument"] for row in rows} == {"share.private.cross-entropy", "share.private.proximal"}
    assert {row["round"] for row in rows} == {"2", "3", "4"}


def test_the_coordinator_measures_its_own_half(pictures):
    found = run(pictures, "fedssa").history[1].instruments
    assert found.keys() == {"mu", "header_cosine"}
    assert COORDINATOR not in found["mu"]


@pytest.mark.torch
def test_a_discriminator_is_measured_on_the_coordinator(pictures):
    pytest.importorskip("torch")
    last = run(pictures, "fedal").history[-1].instruments
    assert all(set(last[name]) == {COORDINATOR} for name in DISCRIMINATOR)
    assert last["discriminator_chance"][COORDINATOR] == pytest.approx(-np.log(6))


@pytest.mark.parametrize(("ratio", "lines"), [(0.02, 1), (0.2, 0)])
def test_an_adversarial_term_of_no_weight_is_told(ratio, lines):
    newest = {"adversarial_ratio": ratio, "discriminator_u": -1.79, "discriminator_chance": -1.79}
    assert len(load_method("fedal")().without_effect(spec_of(load_method("fedal")), newest)) == lines


DISCRIMINATOR = ("discriminator_accuracy", "discriminator_u", "discriminator_chance", "adversarial_ratio")


def test_a_generator_that_made_nothing_of_use_is_told():
    spec = spec_of(load_method("fedgen"))
    for found, chance in ((np.log(spec.classes), 1), (0.1, 0)):
        assert len(load_method("fedgen")().without_effect(spec, {"generator_cross_entropy": float(found)})) == chance
    for found, few in ((0.1, 1), (0.9, 0)):
        assert len(load_method("fedkf")().without_effect(spec, {"generated_class_entropy": found})) == few


def test_prototypes_that_turn():
    before = np.array([[1.0, 0.0], [0.0, 1.0]])
    after = np.array([[np.cos(0.1), np.sin(0.1)], [0.0, 1.0]])
    found = prototype_instruments(before, after)
    assert found["prototype_turn_degrees"] == pytest.approx(np.degrees(0.1) / 2)
    assert found["prototype_cosine_max"] == pytest.approx(np.sin(0.1))


def test_rows_that_agree_and_rows_that_oppose():
    own = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], np.float32)
    shared = np.array([[2.0, 0.0, 0.0], [0.0, -1.0, 0.0]], np.float32)
    assert header_instruments(shared, own, Params(), 0)["header_cosine"] == pytest.approx(0)
    assert header_instruments(own, own, Params(), 0)["header_cosine"] == pytest.approx(1)
