"""edge-sdk compare: the same federation under several methods, resumable."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import fleets
import numpy as np
import pytest

from coordinator.config import to_toml
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.report.tables import plain_text
from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.fleet import fleet as fleet_of
from edge_sim.studies import planned_runs as comparing
from edge_sim.studies import planned_runs as plans
from edge_sim.studies import study_runs


@pytest.fixture
def config(pictures):
    tables = fleets.tables(pictures, devices=3)
    tables["method"] = {"fedmd": {"public_batch": 8}, "fedal": {"public_batch": 8, "tau": 2}}
    tables["federation"]["rounds"] = 2
    return settings.parse(tables, Path("test.toml"))


def ran(config, out, methods=("fedmd",), seeds=(0, 1)):
    """The comparison, and the runs that it took."""
    labels = []
    found = comparing.compare(config, methods, seeds, out, labels.append)
    return found, [label.split(" (")[0] for label in labels]


def test_every_run_lies_in_a_run_directory_and_none_is_run_twice(config, tmp_path):
    comparison, labels = ran(config, tmp_path)
    assert labels == ["alone, seed 0", "fedmd, seed 0", "alone, seed 1", "fedmd, seed 1"]
    assert [line.method for line in comparison.lines] == ["alone", "fedmd"]
    assert comparison.seeds == (0, 1)
    whole = json.loads((tmp_path / "compare.json").read_text())
    for entry in whole["methods"]:
        for run in entry["runs"]:
            kept = json.loads((tmp_path / run["folder"] / "summary.json").read_text())
            assert kept["accuracy"]["mean"] == run["mean_accuracy"]
            assert kept["seed"] == run["seed"]
    before = (tmp_path / "compare.json").read_bytes()
    assert ran(config, tmp_path)[1] == []
    assert (tmp_path / "compare.json").read_bytes() == before


def test_an_interrupted_run_is_done_again_and_more_may_be_asked_for(config, tmp_path, monkeypatch):
    real = study_runs.write_run

    def interrupted(result, toml, folder):
        if folder.parts[-2:] == ("fedmd", "seed-0"):
            (folder / "federation.toml").write_text(toml)
            raise KeyboardInterrupt
        real(result, toml, folder)

    monkeypatch.setattr(study_runs, "write_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(config, tmp_path, seeds=(0,))
    monkeypatch.undo()
    comparison, labels = ran(config, tmp_path, methods=("fedmd", "fedal"), seeds=(0,))
    assert labels == ["fedmd, seed 0", "fedal, seed 0"]
    assert comparison.completed


def test_a_run_that_failed_is_tried_again(config, tmp_path):
    ran(config, tmp_path, seeds=(0,))
    path = tmp_path / "fedmd/seed-0/summary.json"
    path.write_text(path.read_text().replace('"completed": true', '"completed": false'))
    assert ran(config, tmp_path, seeds=(0,))[1] == ["fedmd, seed 0"]


def test_runs_with_other_settings_are_not_mixed_in(config, tmp_path):
    ran(config, tmp_path, seeds=(0,))
    other = settings.parse({**config.tables, "train": {"batch_size": 4}}, config.file)
    with pytest.raises(UsageError, match=r"alone/seed-0: .*other settings; .*--out"):
        ran(other, tmp_path, seeds=(0,))


def test_a_file_of_settings_counts_by_what_it_says(config, tmp_path):
    ran(config, tmp_path, seeds=(0,))
    file = tmp_path / "fedmd/seed-0/federation.toml"
    file.write_text("# the same settings, written by hand\n" + file.read_text() + '\n[encoding]\nlogits = "f32"\n')
    assert ran(config, tmp_path, seeds=(0,))[1] == []


def test_methods_differ_in_nothing_but_the_method(config):
    """Under one seed: the same data, partition, models, and public set, for the devices alone, too."""
    kinds = [fleet_of.build_fleet(plans.trial_config(config, name, 5)) for name in ("alone", "fedmd", "fedal")]
    first, *others = kinds
    for other in others:
        assert [device.kit for device in other.devices] == [device.kit for device in first.devices]
        for mine, theirs in zip(other.devices, first.devices, strict=True):
            assert np.array_equal(mine.data.train.x, theirs.data.train.x)
            assert mine.public.spec == theirs.public.spec
        assert other.federation.spec.train == first.federation.spec.train
        assert other.federation.spec.seed == first.federation.spec.seed == 5
    seeds = [plans.trial_config(config, "fedmd", seed).federation.seed for seed in (1, 2)]
    assert seeds == [1, 2]


def test_each_method_has_its_own_parameters(config):
    specs = {
        name: fleet_of.build_fleet(plans.trial_config(config, name, 0)).federation.spec
        for name in ("fedmd", "fedal", "alone")
    }
    assert specs["fedal"].params["tau"] == 2
    assert specs["fedmd"].params["public_batch"] == 8
    assert specs["alone"].method == "local"
    assert specs["alone"].params == {}


def test_keys_of_the_method_section_itself_belong_to_the_files_own_method(pictures):
    config = fleets.config(pictures)  # fedmd with [method] public_batch = 8
    assert plans.trial_config(config, "fedmd", 0).method == {"public_batch": 8}
    assert plans.trial_config(config, "fedal", 0).method == {}


def test_the_devices_alone_know_no_faults(pictures):
    tables = fleets.tables(pictures) | {"faults": {"drop": 0.1}}
    config = settings.parse(tables, Path("test.toml"))
    assert plans.trial_config(config, "fedmd", 0).faults.drop == 0.1
    assert plans.trial_config(config, "alone", 0).faults.drop == 0.0


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (("fedmd", "nope"), "--methods nope: no such method; registered are .*fedmd"),
        (("alone",), "name at least one"),
        ((), "name at least one"),
    ],
)
def test_methods_that_do_not_fit(methods, message):
    with pytest.raises(UsageError, match=message):
        plans.check_methods(methods)


def test_the_devices_alone_are_no_method_and_a_name_stands_once():
    assert plans.check_methods(("fedal", "local", "fedmd", "alone")) == ("fedal", "local", "fedmd")
    with pytest.raises(UsageError, match="fedal is given twice"):
        plans.check_methods(("fedal", "fedmd", "fedal"))
    assert plans.check_seeds((3, 1)) == (3, 1)
    with pytest.raises(UsageError, match="3 is given twice"):
        plans.check_seeds((3, 1, 3))
    with pytest.raises(UsageError, match="--seeds -1"):
        plans.check_seeds((0, -1))


def test_a_mistake_in_the_last_method_is_found_before_the_first_run(config, tmp_path):
    tables = {**config.tables, "method": {"fedal": {"tau": 0}}}
    with pytest.raises(UsageError, match="tau"):
        ran(settings.parse(tables, config.file), tmp_path, methods=("fedmd", "fedal"))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(config.tables))
    return path


@pytest.mark.usefixtures("figures")
def test_the_command_prints_a_table_draws_and_exits_with_0(file, tmp_path, capsys):
    out = tmp_path / "cmp"
    arguments = ["compare", str(file), "--methods", "fedmd, fedal", "--out", str(out)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[2:5]] == ["alone", "fedmd", "fedal"]
    assert re.search(r"^fedal, seed 7 .*round 2/2", shown.err, re.MULTILINE)
    kinds = [path.suffix for path in (out / "plots").iterdir()]
    assert {kind: kinds.count(kind) for kind in kinds} == {".csv": 10, ".png": 10, ".svg": 10}
    assert (out / "table.tex").read_text().count(r"\\") == 4
    assert cli.main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole == json.loads((out / "compare.json").read_text())
    assert whole["baseline"] == "fedmd"


def test_the_command_says_how_to_go_on_after_an_interrupt(file, tmp_path, capsys, monkeypatch):
    def stop(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(study_runs, "run_in", stop)
    assert cli.main(["compare", str(file), "--methods", "fedmd", "--out", str(tmp_path / "cmp")]) == 130
    assert "repeat the command to continue" in capsys.readouterr().err


def test_seeds_that_are_no_numbers_are_the_users_error(file, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["compare", str(file), "--methods", "fedmd", "--seeds", "0,x"])
    assert caught.value.code == 2
    assert re.search(r"--seeds: .*whole numbers", capsys.readouterr().err)


def test_a_run_directory_that_lost_its_files_is_no_finished_run(config, tmp_path):
    ran(config, tmp_path, seeds=(0,))
    shutil.rmtree(tmp_path / "alone")
    assert ran(config, tmp_path, seeds=(0,))[1] == ["alone, seed 0"]


@pytest.mark.usefixtures("figures")
def test_report_shows_a_comparison_again(config, tmp_path, capsys):
    comparison, _ = ran(config, tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(plain_text(compare_table(comparison)))
    picture = tmp_path / "plots" / "accuracy_by_bytes.png"
    assert f"drawn: {picture}" in shown
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [json.loads((tmp_path / "compare.json").read_text())]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("compare.json", "{", "compare.json: cannot be read"),
        ("compare.json", '{"version": 9, "methods": [], "baseline": "x"}', "version 9"),
        ("sweep.json", "{}", "sweep.json: cannot be read"),
    ],
)
def test_report_of_what_cannot_be_shown_is_one_line(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    assert cli.main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
