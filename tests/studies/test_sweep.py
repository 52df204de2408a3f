"""edge-sdk sweep: a grid in which every method chooses on the validation part."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import fleets
import pytest
import synthetic

from coordinator.config import to_toml
from coordinator.results.comparison.compare import MethodRuns, Trial
from coordinator.results.report.run_files import read_run
from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.studies import axes, planned_runs, sweep_command
from edge_sim.studies import sweep as sweeping

RATE, ALPHA = "train.learning_rate=0.05,0.2", "partition.classes_per_device=2,3"


@pytest.fixture
def config(pictures):
    tables = fleets.tables(pictures, devices=3)
    tables["method"] = {"fedmd": {"public_batch": 8}, "fedal": {"public_batch": 8, "tau": 2}}
    tables["federation"]["rounds"] = 1
    tables["data"]["split"] = [8, 2, 0]
    return settings.parse(tables, Path("test.toml"))


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(config.tables))
    return path


def ran(config, out, over=(RATE,), methods=("fedmd",), seeds=(0, 1)):
    labels = []
    found = sweeping.sweep(config, axes.read_axes(over), methods, seeds, out, observer=labels.append)
    return found, [label.split(" (")[0] for label in labels]


def test_a_grid_is_run_once_and_goes_on_where_it_grows(config, tmp_path):
    found, labels = ran(config, tmp_path, seeds=(0,))
    assert labels == [
        f"{method}, train.learning_rate={rate}, seed 0" for method in ("alone", "fedmd") for rate in (0.05, 0.2)
    ]
    assert found.completed
    assert ran(config, tmp_path, seeds=(0,))[1] == []
    more = ran(config, tmp_path, over=("train.learning_rate=0.05,0.2,0.4",), seeds=(0,))[1]
    assert more == ["alone, train.learning_rate=0.4, seed 0", "fedmd, train.learning_rate=0.4, seed 0"]


def test_the_files_say_what_was_tried_and_what_was_chosen(config, tmp_path):
    found, _ = ran(config, tmp_path)
    with (tmp_path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 8  # two lines, two rates, two seeds
    assert {row["train.learning_rate"] for row in rows} == {"0.05", "0.2"}
    assert all(row["validation_accuracy"] for row in rows)
    for row in rows:
        devices = read_run(tmp_path / row["folder"]).devices
        assert float(row["device_j"]) == pytest.approx(sum(device.energy_j for device in devices))
        assert [int(row["bytes_up"]), int(row["bytes_down"])] == [
            sum(device.bytes_up for device in devices),
            sum(device.bytes_down for device in devices),
        ]
    assert [row["chosen"] for row in rows].count("1") == 4
    whole = json.loads((tmp_path / "sweep.json").read_text())
    (only,) = whole["conditions"]
    best = max(
        (trial for trial in only["trials"] if trial["method"] == "fedmd"),
        key=lambda trial: trial["validation_accuracy"]["mean"],
    )
    assert best["chosen"]
    assert only["comparison"]["methods"][1]["runs"] == best["runs"]
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    text = sweep_command.sweep_text(found)
    rate = best["setting"]["train.learning_rate"]
    assert f"train.learning_rate = {rate} (validation " in text


def candidate(validation, test, completed=True):
    result = dataclasses.replace(
        synthetic.result(count=1, rounds=1), metrics={"validation_accuracy_mean": validation}, completed=completed
    )
    devices = tuple(dataclasses.replace(device, accuracy=test) for device in result.devices)
    return sweeping.Candidate(MethodRuns("fedmd", (Trial(0, dataclasses.replace(result, devices=devices)),)), {}, {})


def test_the_validation_part_decides_and_never_the_test():
    first, second, broken = candidate(0.6, 0.9), candidate(0.7, 0.1), candidate(0.99, 0.99, completed=False)
    assert sweeping.choose([first, second, broken]) is second
    tie = candidate(0.7, 0.95)
    assert sweeping.choose([second, tie]) is second
    assert sweeping.choose([broken]) is broken


def test_conditions_are_not_chosen_and_each_has_its_own_table(config, tmp_path):
    found, _ = ran(config, tmp_path, over=(ALPHA, RATE), seeds=(0,))
    assert [dict(condition.values) for condition in found.conditions] == [
        {"partition.classes_per_device": 2},
        {"partition.classes_per_device": 3},
    ]
    assert all(len(condition.comparison.lines) == 2 for condition in found.conditions)
    assert (tmp_path / "table.tex").read_text().count(r"\begin{table}") == 2
    points = sweep_command.gain_points(found, found.axes[0])
    assert [(point.method, point.value, point.low) for point in points] == [
        (method, value, None) for method in ("alone", "fedmd") for value in ("2", "3")
    ]
    assert points[0].gain == 0.0
    chosen = [condition.chosen["fedmd"].line.trials[0].accuracy("mean") for condition in found.conditions]
    assert points[3].gain == pytest.approx(chosen[1] - chosen[0])


@pytest.mark.draws
def test_a_gain_is_drawn_with_its_points_beside(config, tmp_path):
    pytest.importorskip("matplotlib")
    found, _ = ran(config, tmp_path, over=(ALPHA,), seeds=(0,))
    (path,) = sweep_command.draw_gains(found, tmp_path / "plots")
    assert path.name == "gain_partition.classes_per_device.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    with path.with_suffix(".csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(sweep_command.gain_points(found, found.axes[0])) == 4


def test_a_gain_names_the_values_of_the_other_axes(config, tmp_path, figures):
    found, _ = ran(config, tmp_path, over=(RATE, "train.local_steps=2,3", ALPHA), seeds=(0,))
    paths = {path.stem: path for path in sweep_command.draw_gains(found, tmp_path / "plots")}
    with paths["gain_train.learning_rate"].with_suffix(".csv").open() as stream:
        (row, *_) = csv.DictReader(stream)
    assert (row["train.local_steps"], row["partition.classes_per_device"]) == ("2", "2")
    said = [text.get_text().replace("\n", " ") for figure in figures for text in figure.texts]
    assert any("with train.local_steps = 2, partition.classes_per_device = 2" in text for text in said)
    with paths["gain_partition.classes_per_device"].with_suffix(".csv").open() as stream:
        assert next(csv.reader(stream)) == [*sweep_command.GainPoint._fields]  # settings are those chosen


def test_a_value_that_stands_there_twice_is_refused():
    for text in ("train.learning_rate=0.1,0.1", "train.local_steps=1,2,1"):
        with pytest.raises(UsageError, match="is given twice"):
            axes.read_axes([text])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (("--set", "train.learning_rate=0.5", "--over", RATE), "train.learning_rate"),
        (("--set", "method.public_batch=4", "--over", "method.fedmd.public_batch=8,16"), "method.public_batch"),
        (("--set", "federation.method=fedal", "--methods", "fedmd", "--over", RATE), "federation.method"),
        (("--set", "federation.seed=3", "--seeds", "0,1", "--over", RATE), "federation.seed"),
    ],
)
def test_a_set_that_another_option_would_replace_is_refused(pictures, tmp_path, capsys, options, key):
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(fleets.tables(pictures, devices=3)))
    assert cli.main(["sweep", str(file), *options, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert f"--set {key}: --" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_compare_refuses_a_set_of_its_methods(file, tmp_path, capsys):
    command = ["compare", str(file), "--methods", "fedmd", "--set", "federation.method=fedmd"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "--set federation.method: --methods gives it" in capsys.readouterr().err


def test_conditions_alone_need_no_validation_part(config, tmp_path):
    tables = {**config.tables, "data": {**config.tables["data"], "split": [1, 0, 0]}}
    found, _ = ran(settings.parse(tables, config.file), tmp_path, over=(ALPHA,), seeds=(0,))
    assert len(found.conditions) == 2


def test_a_key_for_one_method_changes_that_method_alone(config):
    found = axes.read_axes(["method.fedal.tau=2,4", RATE])
    assert len(axes.choices(found, "fedal")) == 4
    assert axes.choices(found, "fedmd") == [{"train.learning_rate": 0.05}, {"train.learning_rate": 0.2}]
    changed = planned_runs.trial_config(config, "fedal", 0, {"method.fedal.tau": 4})
    assert changed.tables["method"] == {"fedal": {"public_batch": 8, "tau": 4}}
    assert config.tables["method"]["fedal"]["tau"] == 2


def test_a_swept_key_takes_the_place_of_the_files_own(pictures):
    own = fleets.config(pictures)  # fedmd with [method] public_batch = 8
    changed = planned_runs.trial_config(own, "fedmd", 0, {"method.fedmd.public_batch": 4})
    assert changed.tables["method"] == {"fedmd": {"public_batch": 4}}


def test_labels_are_file_names_and_differ_where_settings_do():
    assert (
        planned_runs.label({"train.learning_rate": 0.1, "method.fedal.tau": 2})
        == "method.fedal.tau=2,train.learning_rate=0.1"
    )
    slash, space = planned_runs.label({"data.path": "a/b"}), planned_runs.label({"data.path": "a b"})
    assert "/" not in slash
    assert slash != space
    assert len(planned_runs.label({"data.path": "x" * 500})) < 100


@pytest.mark.parametrize(
    ("over", "methods", "message"),
    [
        (("train.nope=1,2",), ("fedmd",), "train.nope: unknown key"),
        (("train.learning_rate=-1,0.1",), ("fedmd",), "train.learning_rate"),
        (("method.fedmd.nope=1",), ("fedmd",), "method.fedmd.nope: fedmd has no such parameter"),
        (("method.fedal.tau=2,0",), ("fedal",), "tau"),
        (("method.tau=1,2",), ("fedal",), "name the method, as in method.NAME.tau"),
        (("method.fedal.tau=1,2",), ("fedmd",), "fedal is not among --methods fedmd"),
        (("method.fedal.tau=2,4",), ("fedal", "fedmd"), r"unequal numbers .*fedal 2, fedmd 1"),
        (("federation.seed=1,2",), ("fedmd",), "what --seeds is for"),
        (("learning_rate=1",), ("fedmd",), "expected SECTION.KEY=VALUE"),
        (("train.learning_rate",), ("fedmd",), "expected SECTION.KEY=VALUE"),
        (("train.learning_rate=",), ("fedmd",), "a value is missing"),
        ((RATE, RATE), ("fedmd",), "is given twice"),
        (("fleet.count=1,2",), ("fedmd",), "fleet is not a table"),
    ],
)
def test_a_mistake_is_told_before_the_first_run(config, tmp_path, over, methods, message):
    with pytest.raises(UsageError, match=message) as caught:
        ran(config, tmp_path, over=over, methods=methods, seeds=(0,))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_without_a_validation_part_nothing_is_chosen(file, tmp_path, capsys):
    arguments = ["sweep", str(file), "--over", RATE, "--set", "data.split=[1,0,0]", "--out", str(tmp_path / "s")]
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert "no validation part" in shown.err
    assert "data.split=[8,1,1]" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("figures")
def test_the_command_prints_draws_and_exits_with_0(file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "s"
    arguments = ["sweep", str(file), "--over", RATE, "--seeds", "0,1", "--out", str(out)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "on the validation part:" in shown
    assert (out / "plots/gain_train.learning_rate.png").exists()
    assert (
        (out / "plots/gain_train.learning_rate.csv")
        .read_text()
        .startswith("method,value,gain,low,high\nalone,0.05,0.0")
    )
    assert (out / "plots/accuracy_by_round.png").exists()
    monkeypatch.setenv("COLUMNS", "60")
    assert cli.main(arguments) == 0
    table, chosen, _ = capsys.readouterr().out.partition("chosen on the validation part:")
    assert chosen
    assert max(map(len, (table + chosen.partition("figures:")[0]).splitlines())) <= 60
    assert "trials.csv" in table
    assert "methods.csv" not in table
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "sweep.json").read_text())
