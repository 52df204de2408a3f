"""`edge-sdk methods`: a decision table, all methods, one method in full, and those that fit a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_sdk.cli import main
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.projects import methods_command
from edge_sim.projects.methods_command import BEGIN_WITH, catalogue_text, describe_methods


def test_as_json_it_is_what_another_language_must_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe_methods()))


def test_a_name_gives_all_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "fedmd"]) == 0
    (row,) = (row for row in describe_methods() if row["name"] == "fedmd")
    assert capsys.readouterr().out == catalogue_text([row]) + "\n"
    assert main(["methods", "fedmd", "fedal", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["fedal", "fedmd"]


def test_without_a_name_every_method_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line} >= set(method_names())


def test_the_decision_table_names_methods_and_their_parameters() -> None:
    for _, said in BEGIN_WITH:
        name, _, setting = said.partition(", ")
        assert setting.partition(" = ")[0] in ("", *load_method(name)().table)


def test_a_misspelt_name_is_one_line_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "fedmb"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "'fedmb'" in told
    assert "fedmd?" in told


def test_a_model_is_told_its_part_in_each_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    from onnx_files import classifier

    file = tmp_path / "mine.onnx"
    file.write_bytes(classifier())
    assert main(["methods", "--for", str(file), "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)
    assert fits.keys() == {*method_names()}
    assert (fits["fedmd"]["part"], fits["fedavg"]["part"]) == ("learns", "none")
    assert main(["methods", "fedmd", "--for", str(file)]) == 0
    assert "fedavg" not in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["methods", "--for", str(file)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize("content", [None, b"no model"])
def test_a_file_that_is_no_model_is_one_line(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "mine.onnx"
    if content is not None:
        file.write_bytes(content)
    assert main(["methods", "--for", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "mine.onnx" in told


def test_the_footer_names_the_sizes_that_the_bytes_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    sizes = methods_command.EXAMPLE
    assert f"for {sizes.classes} classes, {sizes.feature_dim} features and {sizes.weights:,} weights" in said
