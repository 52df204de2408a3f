"""Drift of a device's samples: the tests, what is kept, and what leaves the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic

import edge_sdk
from coordinator.results.report.run_table import drift_line
from edge_sdk.device.training.data_supply import DataSupply
from edge_sdk.reductions.shift import feature_shift, label_shift, sketch_of
from edge_sdk.serving.drift import DriftWatch

CLASSES = 4


def drawn(
    seed: int, count: int = 200, *, shares: Any = None, brighter: float = 0.0
) -> tuple[np.ndarray, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES, count, p=shares)
    return rng.normal(brighter, 1, (count, 1, 8, 8)).astype(np.float32), tuple(np.bincount(y, minlength=CLASSES))


def shifts(first: Any, now: Any) -> tuple[float, float]:
    one, other = sketch_of(*first), sketch_of(*now)
    return label_shift(one, other), feature_shift(one, other)


def test_chance_is_no_drift() -> None:
    found = [shifts(drawn(seed), drawn(1000 + seed)) for seed in range(300)]
    assert sum(labels > 0 for labels, _ in found) <= 3
    assert sum(features > 0 for _, features in found) <= 3
    assert not any(max(shifts(drawn(seed, 25), drawn(500 + seed, 25))) >= 3 for seed in range(50))


def test_shifts_are_found() -> None:
    assert shifts(drawn(0), drawn(1, shares=[0.7, 0.1, 0.1, 0.1]))[0] > 0.25
    assert shifts(drawn(0), drawn(1, brighter=0.8))[1] > 0.5
    assert shifts(drawn(0, 10), drawn(1, 10, brighter=5.0)) == (0.0, 0.0)  # too few to tell


def watch(
    store: edge_sdk.SampleStore, folder: Path | None, *, discloses: bool = True
) -> tuple[DataSupply, DriftWatch, list[str]]:
    said = list[str]()
    model = edge_sdk.NumpyModel(CLASSES, (1, 8, 8), seed=1)
    supply = DataSupply(model, store, None, discloses_classes=discloses, proxy=None)
    return supply, DriftWatch(supply.bench, folder, said.append, said.append), said


def fill(store: edge_sdk.SampleStore, seed: int, count: int, **other: Any) -> None:
    rng = np.random.default_rng(seed)
    x, _ = drawn(seed, count, brighter=other.get("brighter", 0.0))
    for each, label in zip(x[:, 0], rng.choice(CLASSES, count, p=other.get("shares")), strict=True):
        store.label(store.observe(each), int(label))


@pytest.mark.parametrize("discloses", [True, False])
def test_a_stream_that_was_empty_at_joining_is_compared_with_its_first_samples(tmp_path: Path, discloses: bool) -> None:
    store = edge_sdk.SampleStore(None, classes=CLASSES, max_samples=4000)
    supply, drift, said = watch(store, tmp_path, discloses=discloses)
    assert drift.figures() == {}
    fill(store, 0, 300)
    supply.begin_round()
    assert drift.figures() == {}  # these are the first ones
    fill(store, 1, 100)
    supply.begin_round()
    assert set(drift.figures().values()) == {0.0}
    assert drift.figures() == {}  # nothing new
    assert said == []
    fill(store, 2, 1500, brighter=3.0, shares=[0.9, 0.1, 0.0, 0.0])
    supply.begin_round()
    _, again, said = watch(store, tmp_path, discloses=discloses)  # after a restart
    found = again.figures()
    assert found["drift.features"] > 0.5
    assert found.get("drift.labels", 0.0) > 0.25 or not discloses
    assert ("drift.labels" in found) == discloses
    assert [line.split(" (")[0] for line in said] == [
        "drift: the classes of its samples have shifted",
        "drift: its samples look different from the first ones",
    ]


def test_the_report_names_them_in_one_line() -> None:
    (entry,) = synthetic.result(count=2, rounds=1).history
    entry.instruments.update({"drift.labels": {"cam-1": 0.4, "cam-2": 0.0}, "drift.features": {"cam-2": 0.1}})  # type: ignore[attr-defined]  # a dict
    line = "drift since they joined: shares of the classes of 1 of 2 devices have shifted (cam-1)"
    assert drift_line([entry]) == line
    assert drift_line([]) == ""
