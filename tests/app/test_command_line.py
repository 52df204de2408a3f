"""Mistakes on the command line: one line on stderr that names what is wrong, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest

from coordinator.config import to_toml
from edge_sdk import cli


@pytest.fixture
def lab(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lab.toml"
    file.write_text(to_toml(fleets.tables(pictures, "local", rounds=1)), encoding="utf-8")
    return file


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        code: object = cli.main([str(each) for each in arguments])
    except SystemExit as left:
        code = left.code
    assert code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("values", ["train.learning_rate", "train.learning_rate=", "learning_rate=0.1"])
def test_an_axis_without_values_is_the_fault_of_over(
    lab: Path, values: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--over {values}" in complaint(capsys, "sweep", lab, "--over", values)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("simulate",), "FILE.toml"),
        (("no-such-command",), "no-such-command"),
        (("simulate", "lab.toml", "--engine", "steam"), "--engine"),
        (("compare", "lab.toml"), "--methods"),
        (("sweep", "lab.toml", "--over"), "--over"),
    ],
)
def test_arguments_that_do_not_parse_are_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = complaint(capsys, *arguments)
    assert named in error
    assert "--help" in error


def test_a_folder_is_no_federation(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = complaint(capsys, "simulate", lab.parent)
    assert str(lab.parent) in error
    assert "folder" in error
    assert "Errno" not in error


def test_a_bad_broker_url_comes_before_everything_else(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (lab, lab.with_name("missing.toml")):
        error = complaint(capsys, "coordinator", file, "--broker", "foo")
        assert "'foo'" in error
        assert "mqtt://" in error
    error = complaint(capsys, "device", "--federation", "lab", "--app", "no_such:make", "--broker", "foo")
    assert "'foo'" in error
    assert not (lab.parent / "runs").exists()


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_parameter_is_named_where_it_stands(lab: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    lab.write_text(lab.read_text(encoding="utf-8") + "\n[method.local]\ntau = 3\n", encoding="utf-8")
    error = complaint(capsys, "simulate", lab, "--set", f"federation.method={method}")
    assert f"{lab}: method.local.tau: " in error
