"""A sweep that searches: Optuna proposes settings, and ends runs that fall behind; what was tried is not run again."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import fleets
import pytest
from interrupting import stop_after

import edge_sim
from coordinator.config import to_toml
from coordinator.results.report.run_files import read_run
from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.studies.axes import read_axes
from edge_sim.studies.search import PRUNED, Search
from edge_sim.studies.sweep import Sweep, sweep
from edge_sim.studies.sweep_command import sweep_text

RANGE = "train.learning_rate=0.0001..1.0"


@pytest.fixture(name="config")
def _config(pictures: Path) -> Config:
    tables = fleets.tables(pictures, "fedavg", devices=2, rounds=4)
    tables["train"]["local_steps"] = 1
    tables["data"]["split"] = [8, 2, 0]
    return settings.parse(tables, Path("test.toml"))


def ran(
    config: Config, out: Path, *over: str, search: Search, seeds: tuple[int, ...] = (0,), methods: tuple[str, ...] = ()
) -> tuple[Sweep, list[str]]:
    pytest.importorskip("optuna")
    labels: list[str] = []
    axes = read_axes(over or (RANGE,))
    found = sweep(config, axes, methods or ("fedavg",), seeds, out, search=search, observer=labels.append)
    return found, labels


def tried(found: Sweep, method: str = "fedavg") -> list[tuple[float, bool]]:
    """The learning rates of a method in the order in which they were tried, and whether each was ended early."""
    return [
        (candidate.setting["train.learning_rate"], candidate.pruned)
        for candidate in found.conditions[0].candidates
        if candidate.line.method == method
    ]


def test_each_method_tries_as_many_settings_of_the_range(config: Config, tmp_path: Path) -> None:
    found, labels = ran(config, tmp_path, search=Search(trials=4))
    rates = [rate for rate, _ in tried(found)]
    assert len(set(rates)) == len(tried(found, "alone")) == 4
    assert all(0.0001 <= rate <= 1.0 for rate in rates)
    assert len(labels) == 8
    best = max(found.conditions[0].candidates[4:], key=lambda candidate: candidate.validation.mean)
    assert found.conditions[0].chosen["fedavg"] is best
    assert json.loads((tmp_path / "sweep.json").read_text())["search"] == {"trials": 4, "prune": False}


def test_what_was_tried_is_not_run_again_and_more_trials_add_to_it(config: Config, tmp_path: Path) -> None:
    first, _ = ran(config, tmp_path, search=Search(trials=4, prune=True))
    again, labels = ran(config, tmp_path, search=Search(trials=4, prune=True))
    assert (tried(again), labels) == (tried(first), [])
    more, labels = ran(config, tmp_path, search=Search(trials=6, prune=True))
    assert tried(more)[:4] == tried(first)
    assert len(labels) == 4


@pytest.mark.parametrize("steps", [60, 150, 260])
def test_an_interrupt_changes_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    whole, _ = ran(config, tmp_path / "whole", search=Search(trials=5, prune=True))
    with monkeypatch.context() as patched:
        stop_after(patched, steps, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            ran(config, tmp_path / "cut", search=Search(trials=5, prune=True))
    cut, labels = ran(config, tmp_path / "cut", search=Search(trials=5, prune=True))
    assert labels
    assert (tried(cut), tried(cut, "alone")) == (tried(whole), tried(whole, "alone"))
    files = [sorted((tmp_path / name).glob("*/*/*/validation.csv")) for name in ("whole", "cut")]
    assert [path.read_text() for path in files[0]] == [path.read_text() for path in files[1]]


def test_a_run_below_the_median_ends_early_and_is_never_chosen(config: Config, tmp_path: Path) -> None:
    values = "train.learning_rate=0.2,0.3,0.4,0.00001"
    found, _ = ran(config, tmp_path, values, search=Search(prune=True), seeds=(0, 1))
    assert tried(found) == [(0.2, False), (0.3, False), (0.4, False), (0.00001, True)]
    folder = tmp_path / "fedavg" / "train.learning_rate=1e-05"
    assert not (folder / "seed-1").exists()
    result = read_run(folder / "seed-0")
    assert (result.completed, result.reason, result.rounds_done) == (False, PRUNED, 1)
    assert not list(folder.glob("*/checkpoint*"))
    with (folder / "seed-0" / "validation.csv").open() as stream:
        assert [row["round"] for row in csv.DictReader(stream)] == ["1"]
    assert found.completed
    assert found.conditions[0].chosen["fedavg"].setting != {"train.learning_rate": 0.00001}
    assert "1 of them ended early" in sweep_text(found)
    whole, labels = ran(config, tmp_path, values, search=Search(trials=4), seeds=(0, 1))
    assert sum(label.startswith("fedavg, train.learning_rate=1e-05") for label in labels) == 2
    assert not any(pruned for _, pruned in tried(whole))


def test_the_command_and_python_search(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    file, out = tmp_path / "tiny.toml", tmp_path / "s"
    file.write_text(to_toml(config.tables))
    arguments = ["sweep", str(file), "--over", RANGE, "--trials", "2", "--json", "--out", str(out)]
    assert cli.main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    same = edge_sim.sweep(config, {"train.learning_rate": "0.0001..1.0"}, trials=2, out=out)
    assert same.summary() == shown
    assert (shown["axes"][0]["range"], shown["axes"][0]["values"]) == (True, [0.0001, 1.0])
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(arguments) == 2
    assert "edge-sdk[search]" in capsys.readouterr().err


def test_whole_numbers_and_conditions(config: Config, tmp_path: Path) -> None:
    over = ("train.local_steps=1..3", "partition.classes_per_device=2,3")
    found, labels = ran(config, tmp_path, *over, search=Search(trials=3))
    assert len(labels) == 12
    for condition in found.conditions:
        steps = [each.setting["train.local_steps"] for each in condition.candidates if each.line.method == "fedavg"]
        assert sorted(steps) == [1, 2, 3]


@pytest.mark.parametrize(
    ("over", "search", "message"),
    [
        ((RANGE,), None, "--trials"),
        ((RANGE,), Search(prune=True), "--trials"),
        (("train.learning_rate=1.0..0.1",), Search(trials=2), "lower end"),
        (("train.learning_rate=-1.0..0.1",), Search(trials=2), "train.learning_rate"),
        (("partition.classes_per_device=2..3",), Search(trials=2), "partition.classes_per_device"),
        (("train.local_steps=1..3",), Search(trials=4), "--trials 4"),
    ],
)
def test_a_search_that_cannot_be_is_refused_first(
    config: Config, tmp_path: Path, over: tuple[str, ...], search: Search | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(config, read_axes(over), ("fedavg",), (0,), tmp_path, search=search)
    assert not list(tmp_path.iterdir())


def test_several_at_once_are_refused(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--jobs"):
        sweep(config, read_axes([RANGE]), ("fedavg",), (0,), tmp_path, search=Search(trials=2), jobs=2)
