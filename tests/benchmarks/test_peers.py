"""The peers' benchmark: its arithmetic, and that every side gets the simulator's own parts.  Nobody is installed."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def module(monkeypatch):
    """Imports one of the folder's files, and forgets it afterwards: their names are common words."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)


def run_of(made, ms=2.0, **changes):
    names = [field.name for field in dataclasses.fields(made.Run)]
    return made.Run(**{**dict.fromkeys(names, 1.0), "ms": ms, "others_cpu": 0.0, **changes})


def test_round_one_is_not_timed_and_a_snapped_round_shows_in_the_mean(module):
    made = module("figures_of")
    assert made.per_device_round([5.0, 5.2, 5.4, 6.4], 20) == pytest.approx((10.0, 1400 / 3 / 20))


def test_a_case_counts_its_quiet_pairs_only(module):
    made = module("figures_of")
    quiet = made.Pair("pfl", "mlp", 20, run_of(made, 2.0), run_of(made, 3.0))
    loud = made.Pair("pfl", "mlp", 20, run_of(made, 2.0, others_cpu=0.13), run_of(made, 9.0))
    (case,) = made.figures([loud, quiet])
    assert (case["ratio"], case["pairs"], case["quiet"]) == (1.5, 1, True)


def test_without_a_quiet_pair_all_count_and_the_load_is_told(module):
    made = module("figures_of")
    pairs = [
        made.Pair("pfl", "cnn", 20, run_of(made, 2.0), run_of(made, ms, others_cpu=share))
        for ms, share in ((4.0, 0.5), (6.0, 0.7), (8.0, 0.6))
    ]
    (case,) = made.figures(pairs)
    assert (case["ratio"], case["ratio_range"], case["quiet"], case["others_cpu"]) == (3.0, [2.0, 4.0], False, 0.7)


def test_other_work_is_noticed(module):
    made = module("figures_of")
    pair = made.Pair("fedml", "mlp", 100, run_of(made, loss=2.2864), run_of(made, loss=1.1))
    assert not made.figures([pair])[0]["same_work"]


@pytest.mark.parametrize(
    ("shares", "done"), [([0.0], False), ([0.0, 0.0], True), ([0.5] * 3, False), ([0.5] * 4, True)]
)
def test_a_case_is_repeated_until_quiet_or_given_up(module, shares, done):
    made = module("figures_of")
    pairs = [made.Pair("pfl", "mlp", 20, run_of(made, others_cpu=share), run_of(made)) for share in shares]
    assert made.enough(pairs, wanted=2, tries=4) is done


def test_what_the_kernel_counts(module):
    watch = module("watch")
    assert watch.busy_ticks("cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3\n") == 100 + 20 + 30 + 6 + 7 + 8
    stat = "42 (ray::a) b) S 1 42 42 0 -1 4194304 1 2 3 4 150 25 9 9 20 0 1 0 7777 1 1"
    assert watch.own_ticks(stat) == (7777, 175)


@pytest.mark.parametrize(("when_s", "value"), [(0.5, 10.0), (1.0, 10.0), (1.5, 15.0), (3.0, 30.0), (9.0, 40.0)])
def test_between_two_samples(module, when_s, value):
    assert module("watch").at([1.0, 2.0, 4.0], [10.0, 20.0, 40.0], when_s) == value


def test_every_side_reads_the_simulators_own_parts(module, tmp_path):
    task = module("task")
    task.write(tmp_path / "task.npz", 20)
    with np.load(tmp_path / "task.npz") as file:
        sizes = np.diff(file["starts"])
        assert len(sizes) == 20
        assert sizes.min() >= 4
        assert sizes.sum() == len(file["x"]) == len(file["y"]) == 1797 - len(file["y_test"])
        assert file["x"].shape[1:] == (1, 8, 8)
        assert 0 <= file["x"].min() <= file["x"].max() <= 1


@pytest.mark.torch
@pytest.mark.parametrize(("name", "parameters"), [("mlp", 85_002), ("cnn", 85_066)])
def test_the_nets_of_the_issue(module, name, parameters):
    assert sum(each.numel() for each in module("side").net(name).parameters()) == parameters


def test_ours_is_a_share_of_each_peer_with_a_goal_that_only_quiet_runs_meet(module):
    made = module("figures_of")
    sides = {"edge": (1.0, 0.0), "flower": (25.0, 0.0), "pfl": (3.0, 0.5), "fedml": (4.0, 0.0)}
    cases = made.figures(
        [
            made.Pair(peer, "mlp", 20, run_of(made, 2.0), run_of(made, ms, others_cpu=others))
            for peer, (ms, others) in sides.items()
        ]
    )
    rows = {row[0]: row[3:] for row in made.against("edge", cases)}
    assert rows["flower"] == ["**0.04**", "1.00", "0.06 met"]
    assert rows["pfl"] == ["**0.33**", "1.00", "0.70"]
    assert rows["fedml"] == ["**0.25**", "1.00", "-"]
    assert "edge" not in rows
