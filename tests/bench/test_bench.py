"""edge-sdk bench: its runs, its table, what it says of missing data and of wrong input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from studies.test_comparison import trial

from coordinator.results.comparison.compare import Comparison, MethodRuns
from edge_sdk import cli
from edge_sim.bench import bench as benches
from edge_sim.bench import tables, tasks
from edge_sim.bench.tasks import TASKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A smoke benchmark of one task under three methods, and its page."""
    out = tmp_path_factory.mktemp("bench")
    page = out.with_suffix(".md")
    page.write_text("before\n<!-- bench: begin -->\nearlier figures\n<!-- bench: end -->\nafter\n")
    arguments = ["--smoke", "--tasks", "vibration,mnist", "--data", str(out), "--out", str(out)]
    assert cli.main(["bench", *arguments, "--methods", "fedavg,fedalign", "--page", str(page)]) == 0
    return out


def test_each_method_runs_in_its_group_and_the_page_says_why_one_did_not(folder):
    text = folder.with_suffix(".md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "earlier figures" not in text
    assert "| fedavg | " in text.split("### vibration, one net for all")[1].split("###")[0]
    assert "| fedavg | " not in text.split("### vibration, nets by board")[1].split("###")[0]
    assert "- vibration: `fedalign`: fleet.model: fedalign" in text
    assert "mnist: no " in text  # how to get the data
    for name in ("bench.tex", "bench.html", "vibration/one-net/compare.json"):
        assert "fedavg" in (folder / name).read_text().lower()


def test_a_new_method_gets_its_row_by_one_command_and_no_run_is_repeated(folder, monkeypatch):
    ran = []
    real = benches.run_missing

    def watched(planned, out, *rest, **named):
        ran.extend(each.folder for each in planned if not (out / each.folder / "summary.json").exists())
        return real(planned, out, *rest, **named)

    monkeypatch.setattr(benches, "run_missing", watched)
    arguments = ["--smoke", "--tasks", "vibration", "--method", "fedproto", "--data", str(folder)]
    assert cli.main(["bench", *arguments, "--out", str(folder)]) == 0
    assert ran == ["fedproto/seed-0"]
    text = (folder / "bench.md").read_text()
    assert "| fedproto | " in text
    assert "| fedavg | " in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--tasks", "mnsit"], "--tasks mnsit: no such task; did you mean mnist?"),
        (["--methods", "fedprotto"], "--methods fedprotto: no such method; did you mean fedproto?"),
        (["--boards", "rpi5,toaster"], "toaster"),
        (["--seeds", "0,one"], "'0,one': expected whole numbers such as 0,1,2"),
        (["--out", "."], ".: holds no benchmark (no bench.json); give --out an empty or a new folder"),
        (["--show", "--out", "nowhere"], "nowhere: holds no benchmark (no bench.json)"),
    ],
)
def test_wrong_input_gets_one_line(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as error:  # of argparse
        code = error.code
    told = capsys.readouterr().err
    assert code == 2
    assert line in told
    assert told.count("\n") == 1


def test_a_folder_of_another_scale_is_refused(folder, capsys):
    assert cli.main(["bench", "--out", str(folder)]) == 2
    assert "holds a benchmark with --scale smoke, not small" in capsys.readouterr().err
    kept = json.loads((folder / "bench.json").read_text())
    assert kept["scale_name"] == "smoke"


def runs(name, *means):
    return MethodRuns(name, tuple(trial(seed, (mean, mean)) for seed, mean in enumerate(means)))


def test_a_method_is_ahead_where_its_whole_interval_is():
    """better: +0.10 in each seed; worse: -0.10; level: +0.10, -0.10, 0, whose interval includes 0."""
    lines = (
        runs("local", 0.5, 0.6, 0.7),
        runs("better", 0.6, 0.7, 0.81),
        runs("worse", 0.4, 0.5, 0.61),
        runs("level", 0.6, 0.5, 0.7),
    )
    found = tables._verdict(TASKS[0], "mixed", Comparison(lines, "local"))
    assert (found.best.method, found.ahead, found.behind) == ("better", ("better",), ("worse",))
    assert found.level == ("level",)


def test_pictures_are_shrunk_by_means_and_each_seed_may_draw_its_own():
    x = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    arrays = {"x_train": x, "y_train": np.arange(2), "x_test": x, "y_test": np.arange(2)}
    found = tasks._pictures(arrays, tasks.SCALES["small"])
    assert found["x_train"].shape == (2, 2, 2)
    assert found["x_train"][0, 0, 0] == round(float(np.mean([0, 1, 4, 5])))
