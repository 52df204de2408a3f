"""The HTML report: one file that loads nothing, escapes what devices say, and holds what a reader must know."""

from __future__ import annotations

import dataclasses
import json
import re

import fleets
import pytest
import synthetic

import edge_sim
from coordinator.record.round_result import Missed
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_files import write_comparison
from coordinator.results.document import values
from coordinator.results.plots.plots import run_drawings
from coordinator.results.report.run_files import write_run
from edge_sdk.cli import main

pytest.importorskip("jinja2")

TOML = '[federation]\nname = "<b>demo</b>"\n'


def run_in(folder, **changes):
    result = synthetic.result(count=3, rounds=4)
    write_run(dataclasses.replace(result, **changes), TOML, folder)
    return result


@pytest.fixture
def bare(monkeypatch):
    """Without pictures, which take most of the time."""
    monkeypatch.setattr("coordinator.results.document.command.draw_pictures", lambda *_args: [])
    monkeypatch.setattr(
        "coordinator.results.document.jinja2_document.inline_pictures", lambda *_args: ([], "not drawn here")
    )


@pytest.mark.draws
def test_the_file_says_what_a_reader_must_know_and_loads_nothing(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    missed = (Missed(2, 1, "device-1", "declined: <charging>"),)
    card = {"classes": 10, "shape": [8, 8], "type": "uint8", "range": [0.0, 16.0], "scale": 0.0625, "seed": 7}
    card |= {"samples": {"source": 90, "private": 70, "test": 20}, "by_class": {"private": [7] * 10, "test": [2] * 10}}
    run_in(tmp_path / "run", missed=missed, card=card, warnings=("W99: <em>",))
    assert main(["report", str(tmp_path / "run")]) == 0
    path = tmp_path / "run" / "report.html"
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    for said in ("declined: &lt;charging&gt;", "W99: &lt;em&gt;", "&lt;b&gt;demo", "ab" * 32, "device-2", "(8, 8)"):
        assert said in text
    assert "<em>" not in text
    assert "<b>demo" not in text
    outside = re.sub(r'(?:xmlns(?::xlink)?|href)="http://www\.w3\.org/[^"]*"', "", text)
    assert re.findall(r'(?:src|href)="(?!#|data:image/png)[^"]*"|url\((?!#)[^)]*\)|https?://[\w.]+', outside) == []
    assert text.count("<svg ") >= 10
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("bare")
def test_several_runs_stand_in_one_file_beside_them(tmp_path):
    for name in ("one", "two"):
        run_in(tmp_path / name)
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert 'href="#part-2"' in text
    assert text.count('<section id="part-') == 2
    assert not (tmp_path / "one" / "report.html").exists()


@pytest.mark.usefixtures("bare")
def test_a_comparison_has_its_table_and_equal_budgets(tmp_path):
    lines = []
    for name in ("alone", "fedavg"):
        result = run_in(tmp_path / "cmp" / name)
        lines.append(MethodRuns(name, (Trial(0, result, name),)))
    write_comparison(Comparison(tuple(lines), "fedavg"), tmp_path / "cmp")
    assert main(["report", str(tmp_path / "cmp"), "--html", str(tmp_path / "x.html")]) == 0
    text = (tmp_path / "x.html").read_text()
    assert ">fedavg</th>" in text
    assert ">at 128 kB</button>" in text  # 4 rounds of 16,000 bytes in each direction


@pytest.mark.usefixtures("bare")
def test_a_sweep_has_all_that_was_tried(pictures, tmp_path, capsys, monkeypatch):
    tables = fleets.tables(pictures, "fedavg", devices=2, rounds=1)
    tables["data"]["split"] = [8, 2, 0]
    over = {"train.learning_rate": [0.001, 0.5], "partition.classes_per_device": [2, 3]}
    edge_sim.sweep(tables, over, out=tmp_path / "s")
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["report", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert "chosen by fedavg" in shown
    assert "trials.csv" in shown
    assert "methods.csv" not in shown
    text = (tmp_path / "s" / "report.html").read_text()
    assert text.count('<section id="part-') == 2
    assert "partition.classes_per_device = 3" in text
    runs = [path.parent.relative_to(tmp_path / "s").as_posix() for path in tmp_path.glob("s/*/*/*/summary.json")]
    assert len(runs) == 8
    assert all(text.count(f">{run}</th>") == 1 for run in runs)
    assert text.count('data-sort="chosen"') == 4
    assert main(["report", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [json.loads((tmp_path / "s" / "sweep.json").read_text())]


@pytest.mark.usefixtures("bare")
def test_missed_deadlines_and_warnings_of_a_comparison_name_the_run(tmp_path):
    missed = (Missed(2, 1, "device-1", "declined: charging"),)
    result = run_in(tmp_path / "cmp" / "fedavg", missed=missed, warnings=("W99",))
    lines = (MethodRuns("fedavg", (Trial(0, result, "fedavg"),)),)
    write_comparison(Comparison(lines, "fedavg"), tmp_path / "cmp")
    assert main(["report", str(tmp_path / "cmp")]) == 0
    text = (tmp_path / "cmp" / "report.html").read_text()
    assert "fedavg: W99" in text
    assert "declined: charging" in text


@pytest.mark.parametrize(
    "damage", ["{", '{"version": 99}', '{"version": 1}', '{"version": 1, "conditions": [1]}', "[]"]
)
def test_a_sweep_that_does_not_read_is_one_line(tmp_path, capsys, damage):
    (tmp_path / "sweep.json").write_text(damage)
    assert main(["report", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_plots_nothing_is_drawn_and_the_document_says_so(tmp_path, capsys, monkeypatch):
    for place in ("coordinator.results.document.command", "coordinator.results.document.jinja2_document"):
        monkeypatch.setattr(f"{place}.draw_pictures", lambda *_args: pytest.fail("a picture is drawn"))
    run_in(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--no-plots"]) == 0
    assert "drawn: " not in capsys.readouterr().out
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<svg " not in text
    assert "None: drawn without them (--no-plots)" in text


def test_json_alone_writes_no_document(tmp_path, capsys):
    run_in(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["federation"] == "digits-demo"
    assert not (tmp_path / "run" / "report.html").exists()


def test_without_jinja2_the_rest_is_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("coordinator.results.document.command.draw_pictures", lambda *_args: [])
    monkeypatch.setitem(__import__("sys").modules, "coordinator.results.document.jinja2_document", None)
    run_in(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "edge-sdk[coordinator]" in capsys.readouterr().err


@pytest.mark.usefixtures("bare")
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    run_in(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "no" / "x.html")]) != 0
    assert "--html" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "value"),
    [("240 kB", 240e3), ("93.9 % ", 93.9), ("3 min 20 s", 200.0), ("2 h 05 min", 7500.0), ("-", float("inf"))],
)
def test_numbers_are_sorted_by_their_value(text, value):
    assert values.sort_number(text) == value


@pytest.mark.draws
def test_a_picture_says_what_it_shows_but_not_what_its_section_says():
    pytest.importorskip("matplotlib")
    from coordinator.results.document.jinja2_document import inline_pictures  # imports jinja2, which may be missing

    drawings = run_drawings(synthetic.result(count=3, rounds=4, federation="a <b> & c"))
    pictures, _ = inline_pictures(drawings, "part")
    by_title = {picture.title: picture for picture in pictures}
    assert "line: mean" in by_title["Accuracy by round"].subtitle
    assert all("a <b> & c" not in picture.subtitle for picture in pictures)
    assert 'aria-label="Accuracy by round"' in by_title["Accuracy by round"].svg
