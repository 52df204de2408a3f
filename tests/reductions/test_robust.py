"""Estimators that few devices cannot decide: the geometric median, the gate by known labels, the minimum group."""

from __future__ import annotations

from pathlib import Path

import fleets
import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.reductions.robust import Combining, geometric_median, median_over_holders, through_gate
from edge_sim.config import settings

LABELS = np.array([0, 1, 2, -1])


def rows(values: object, counts: object, classes: object = (0,)) -> ClassRows:
    return ClassRows(
        classes=np.array(classes, np.int32), rows=np.array(values, np.float32), counts=np.array(counts, np.int32)
    )


def test_the_geometric_median_of_known_points() -> None:
    square = np.array([[0.0, 0], [2, 0], [0, 2], [2, 2]])
    assert geometric_median(square) == pytest.approx([1, 1])
    line = np.array([[0.0], [1], [100]])
    assert geometric_median(line) == pytest.approx([1], abs=1e-3)
    assert geometric_median(np.ones((3, 2))).tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(50))
def test_a_minority_moves_it_by_a_bounded_amount(seed: int) -> None:
    """A share a of bad points leaves it within 2 r (1 - a) / (1 - 2 a) of the honest ones' centre, r their radius."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(int(rng.integers(5, 12)), 4))
    bad = rng.normal(size=(int(rng.integers(1, len(honest) // 2 + 1)), 4)) * 10.0 ** rng.integers(0, 7)
    share, centre = len(bad) / (len(bad) + len(honest)), honest.mean(axis=0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    points = np.concatenate([honest, bad])
    found = geometric_median(points)
    assert np.linalg.norm(found - centre) <= 2 * radius * (1 - share) / (1 - 2 * share)


def test_a_claimed_count_does_not_decide_a_row() -> None:
    ups = [rows([[0.0]], [10]), rows([[0.1]], [12]), rows([[0.2]], [11]), rows([[1000.0]], [2**31 - 1])]
    found = median_over_holders(ups)
    assert -0.1 < float(found.rows[0, 0]) < 0.3
    assert median_over_holders(ups[:1]).rows.tolist() == [[0]]


def test_a_minority_with_large_counts_does_not_outweigh_holders_with_small_ones() -> None:
    honest = [rows([[0.0]], [1]), rows([[0.1]], [1]), rows([[0.05]], [500])]
    found = median_over_holders([*honest, rows([[1000.0]], [500]), rows([[1000.0]], [500])])
    assert -0.1 < float(found.rows[0, 0]) < 0.3


def test_a_class_of_too_few_holders_is_not_published() -> None:
    ups = [rows([[1.0], [5.0]], [2, 2], (0, 1)), rows([[3.0]], [2])]
    found = Combining(min_group=2).rows(ups)
    assert found is not None
    assert (found.classes.tolist(), found.rows.tolist()) == ([0], [[2]])
    assert Combining(min_group=3).rows(ups) is None


def test_the_gate_keeps_who_is_right_on_known_labels() -> None:
    right, wrong, skewed = np.eye(4)[[0, 1, 2, 3]], np.eye(4)[[3, 2, 1, 0]], np.eye(4)[[0, 1, 1, 0]]
    assert through_gate([right, wrong, skewed], LABELS) == [0, 2]
    assert through_gate([right, wrong], np.full(4, -1)) == [0, 1]


@pytest.mark.parametrize("by", ["geometric-median", "root-gate"])
def test_logits_of_any_size_weigh_as_one_opinion(by: str) -> None:
    honest = {number: 3 * np.eye(4, dtype=np.float32) for number in range(3)}
    loud = {**honest, 3: 1e4 * np.eye(4, dtype=np.float32)[::-1]}
    combining = Combining(logits_by=by, labels=tuple(LABELS))
    assert combining.logits(loud, np.arange(4)).argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert Combining().logits(loud, np.arange(4)).argmax(axis=1).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("method", "robust", "key"),
    [
        ("fedmd", {"rows": "geometric-median"}, "robust.rows"),
        ("fedmd", {"min_group": 2}, "robust.min_group"),
        ("fedavg", {"logits": "geometric-median"}, "robust.logits"),
        ("fedmd", {"logits": "root-gate"}, "robust.labels"),
        ("fedmd", {"logits": "root-gate", "labels": [-1, -1]}, "robust.labels"),
        ("fedmd", {"logits": "root-gate", "labels": [1, 10]}, "robust.labels"),
        ("fedmd", {"labels": [1]}, "robust.labels"),
        ("fedmd", {"logits": "root-gate", "labels": [1] * 41}, "robust.labels"),
        ("fedmd", {"logits": "median"}, "robust.logits"),
    ],
)
def test_what_does_not_fit_the_method_is_one_line(pictures: Path, method: str, robust: dict, key: str) -> None:
    tables = {**fleets.tables(pictures, method), "robust": robust}
    with pytest.raises(UsageError, match=key) as caught:
        fleets.fleets.build_fleet(settings.parse(tables, Path("test.toml")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "robust"),
    [
        ("fedproto", {"rows": "geometric-median"}),
        ("fedssa", {"rows": "geometric-median"}),
        ("fedhkd", {"rows": "geometric-median", "min_group": 2}),
        ("fedmd", {"logits": "geometric-median"}),
        ("fedmd", {"logits": "root-gate", "labels": [0, 1, 2, 3] * 10}),
    ],
)
def test_runs_end_and_a_restart_gives_the_same_bits(pictures: Path, method: str, robust: dict) -> None:
    config = settings.parse({**fleets.tables(pictures, method), "robust": robust}, Path("test.toml"))
    clean = fleets.Run(config).finished()
    assert clean.result.completed
    assert clean.coordinator_bytes != fleets.Run(fleets.built(pictures, method)).finished().coordinator_bytes
    cut = fleets.Run(config)
    cut.power_cut("coordinator", 0.5, 3.0)
    assert cut.finished().coordinator_bytes == clean.coordinator_bytes
