"""docs/reference/reports.md names the figures, files and pictures that there are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import fleets
import pytest

from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.figures.metrics import TARGETS
from coordinator.results.figures.round_figures import OWN_TASK_COLUMNS
from coordinator.results.plots import plots
from coordinator.results.report.run_files import ACCURACY_COLUMNS, write_run
from coordinator.results.report.summary import summary
from edge_sim.clock import resumption
from edge_sim.config import settings
from edge_sim.runs import run_folder
from edge_sim.runs.runner import run
from edge_sim.studies.axes import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs/reference/reports.md").read_text()


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def names(title, column=0):
    """The code words of a column of the section's table."""
    rows = re.findall(r"^\| (.*) \|$", section(title), re.MULTILINE)[1:]
    return [re.findall(r"`([^`]+)`", row.split(" | ")[column]) for row in rows]


@pytest.fixture(scope="module")
def result(pictures):
    tables = fleets.tables(pictures, "fedavg", devices=3, rounds=2)
    tables["method"] = {"cached": True}
    tables["data"]["split"] = [8, 1, 1]
    tables["run"]["standalone"] = True
    found = run(settings.parse(tables, Path("f.toml")))
    joined = dataclasses.replace(found.devices[0], joining={"accuracy": 0.1})  # as a device of a deployment tells
    return dataclasses.replace(found, devices=(joined, *found.devices[1:]), resumed=resumption.NOTHING)


def test_every_figure_stands_where_the_page_says(result):
    whole = summary(result)
    documented = {}
    for (where,), found in zip(names("Figures of a run"), names("Figures of a run", 1), strict=True):
        documented.setdefault(where, set()).update(found)
    assert documented.pop("to_target") == {f"{target:g}" for target in TARGETS}
    metrics = {name for name in whole["metrics"] if not name.startswith("standalone_")}
    assert documented.pop("metrics") == metrics
    whole |= {f"{model}_model": {**found["accuracy"], **found["own_task"]} for model, found in shared_models(whole)}
    assert documented == {where: set(whole[where]) for where in documented}


def shared_models(whole):
    return [(model, whole[f"{model}_model"]) for model in ("global", "active")]


def test_every_file_is_listed(result, tmp_path):
    write_run(result, "", tmp_path / "run")
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {name for (name,) in names("Files of a run")} == written | {run_folder.SAMPLES, run_folder.INPUTS}
    assert set(OWN_TASK_COLUMNS) | set(ACCURACY_COLUMNS) - {"round", "device"} <= set(re.findall(r"`(\w+)`", PAGE))
    write_comparison(comparison(result), tmp_path)
    assert {name for (name,) in names("compare")} == {path.name for path in tmp_path.iterdir()} - {"run"}


@pytest.mark.usefixtures("figures")
def test_every_picture_is_listed(result, tmp_path):
    drawn = {path.stem: {"run"} for path in plots.draw_run(result, tmp_path / "run")}
    for path in plots.draw_comparison(comparison(result), tmp_path / "compare"):
        drawn.setdefault(path.stem, set()).add("compare")
    rows = re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \|", section("Pictures"), re.MULTILINE)
    drawn |= {"prototype_cosines": {"run", "compare"}}  # fedavg has none: see test_insight
    drawn |= {"who_was_waited_for": {"run"}}  # no round waited here: see test_plots
    drawn |= {"instruments_by_round": {"run", "compare"}}  # fedavg has one loss term: see test_instruments
    assert {name: set(of.split(", ")) for name, of in rows} == {**drawn, "gain_KEY": {"sweep"}}


def test_the_sections_that_a_method_chooses_from_are_named():
    told = section("sweep").split("are *settings*")[0].rsplit("- Keys of", 1)[1]
    assert {name.split(".")[0] for name in re.findall(r"`([\w.]+)`", told)} == set(SETTINGS)


def comparison(result):
    return Comparison((MethodRuns("fedavg", (Trial(0, result, "fedavg/seed-0"),)),), "fedavg")
