"""Training alone follows the run's participation, and `local` is a method like any other."""

from pathlib import Path

import fleets as tiny
import pytest

from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from edge_sdk.errors import UsageError
from edge_sim import run
from edge_sim.config import settings
from edge_sim.studies import planned_runs

ROUNDS, STEPS = 4, 3


def tables(pictures, standalone="matched", method="fedavg", **federation):
    found = tiny.tables(pictures, method, devices=4, rounds=ROUNDS, **federation)
    found["run"]["standalone"] = standalone
    return found


def parsed(found):
    return settings.parse(found, Path("f.toml"))


def test_alone_takes_the_same_steps_in_the_same_rounds(pictures, tmp_path):
    found = run(parsed(tables(pictures, participants=2)))
    steps = {device.id: device.steps for device in found.devices}
    assert steps == {device.id: device.standalone_steps for device in found.devices}
    assert sum(steps.values()) == ROUNDS * 2 * STEPS
    local = run(parsed(tables(pictures, "off", "local", participants=2)))
    assert [e.accuracy for e in found.standalone_history] == [e.accuracy for e in local.history]
    write_run(found, "", tmp_path)
    assert read_run(tmp_path).devices == found.devices
    assert summary(found)["work"]["device_steps_mean"] == ROUNDS * STEPS / 2
    table = run_table(found)
    names = [column.name for column in table.columns]
    assert [row[names.index("steps")] for row in table.rows] == [str(steps[row[0]]) for row in table.rows]


def test_alone_in_every_round(pictures):
    found = run(parsed(tables(pictures, "every-round", participants=2)))
    assert {device.standalone_steps for device in found.devices} == {ROUNDS * STEPS}
    assert sum(device.steps for device in found.devices) == ROUNDS * 2 * STEPS


@pytest.mark.parametrize(("given", "read"), [(True, "matched"), (False, "off"), ("every-round", "every-round")])
def test_what_standalone_may_be(pictures, given, read):
    config = parsed(tables(pictures, given))
    assert config.run.standalone == read
    assert settings.parse(config.tables, Path("f.toml")).run.standalone == read


def test_what_standalone_may_not_be(pictures):
    with pytest.raises(UsageError, match="standalone"):
        parsed(tables(pictures, "sometimes"))


def test_alone_has_a_line_of_its_own_unless_local_is_the_same(pictures, tmp_path):
    config = parsed(tables(pictures, participants=2))
    assert planned_runs.planned_lines(config, ("fedavg", "local")) == ("fedavg", "local")
    assert planned_runs.planned_lines(config, ("fedavg",)) == ("alone", "fedavg")
    every = parsed(tables(pictures, "every-round", participants=2))
    assert planned_runs.planned_lines(every, ("local",)) == ("alone", "local")
    found = planned_runs.compare(config, ("fedavg", "local"), (0,), tmp_path, metric="mean")
    assert [line.method for line in found.lines] == ["fedavg", "local"]
    spent = [line.trials[0].whole["work"]["device_steps_mean"] for line in found.lines]
    assert spent[0] == spent[1]


@pytest.mark.parametrize(
    ("methods", "metric", "words"),
    [
        (("fedavg", "fedmd"), "gm", "--metric gm: fedmd"),
        (("fedavg",), "active_mean", "--metric active_mean: fedavg"),
        (("fedavg",), "nothing", "--metric nothing"),
        (("fedavg",), "validation_accuracy", "no validation part"),
    ],
)
def test_a_metric_that_a_method_cannot_have_is_refused_before_training(pictures, tmp_path, methods, metric, words):
    with pytest.raises(UsageError, match=words):
        planned_runs.compare(parsed(tables(pictures)), methods, (0,), tmp_path / "out", metric=metric)
    assert not (tmp_path / "out").exists()
