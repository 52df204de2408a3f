"""What `--resume` does where the run is finished: one line, and no file changes."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from pathlib import Path

import fleets
import pytest

from coordinator.config import federation, load_toml, read_settings, to_toml
from coordinator.deploy import LEDGER, nothing_left
from coordinator.ledger import Ledger, bound_spec
from coordinator.results.report.run_files import read_run, write_run
from edge_sdk import cli
from edge_sdk.protocol.frames import storage
from edge_sim.runs.runner import run

SILENT = "mqtt://127.0.0.1:1"
"""A broker that does not answer: a coordinator that looked for it would not end at once."""


@pytest.fixture
def file(pictures: Path, tmp_path: Path) -> Path:
    """The file of a federation whose run in the folder `run` is finished."""
    tables = fleets.tables(pictures, "fedavg", devices=2, rounds=2)
    own = {name: tables[name] for name in ("method", "train")}
    own["federation"] = {**tables["federation"], "roster": ["device-00", "device-01"], "classes": fleets.CLASSES}
    path = tmp_path / "federation.toml"
    path.write_text(to_toml(own), encoding="utf-8")
    out = tmp_path / "run"
    result = run(tables)
    write_run(dataclasses.replace(result, time={"wall_s": 48.9}), to_toml(own), out)
    (out / LEDGER).parent.mkdir()
    with closing(Ledger(out / LEDGER)) as ledger:
        ledger.bind(storage.serialise(federation(read_settings(load_toml(path), path)).spec))
    return path


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def resumed(file: Path, *options: str) -> int:
    return cli.main(
        ["coordinator", str(file), "--broker", SILENT, "--out", str(file.parent / "run"), "--resume", *options]
    )


def test_a_finished_run_stays_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(file.parent / "run")
    assert resumed(file) == 0
    assert contents(file.parent / "run") == before
    assert "the run is finished, there is nothing to continue" in capsys.readouterr().err
    assert resumed(file, "--json") == 0
    assert capsys.readouterr().out == (file.parent / "run" / "summary.json").read_text(encoding="utf-8")


def test_a_finished_run_of_other_settings_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resumed(file, "--set", "federation.rounds=5") == 2
    assert "another configuration" in capsys.readouterr().err


def test_a_run_that_was_begun_anew_beside_old_results_goes_on(file: Path) -> None:
    out = file.parent / "run"
    spec = federation(read_settings(load_toml(file), file)).spec
    assert nothing_left(out, spec)
    newer_s = (out / "summary.json").stat().st_mtime + 10
    (out / "progress.json").write_text("{}", encoding="utf-8")
    os.utime(out / "progress.json", (newer_s, newer_s))
    assert not nothing_left(out, spec)


def test_a_run_that_failed_or_whose_summary_does_not_read_goes_on(file: Path) -> None:
    out = file.parent / "run"
    spec = federation(read_settings(load_toml(file), file)).spec
    write_run(dataclasses.replace(read_run(out), completed=False), "", out)
    assert not nothing_left(out, spec)
    (out / "summary.json").write_text("{", encoding="utf-8")
    assert not nothing_left(out, spec)


def test_a_file_that_is_no_ledger_tells_no_spec(tmp_path: Path) -> None:
    assert bound_spec(tmp_path / "absent.db") is None
    (tmp_path / "text").write_text("text " * 100, encoding="utf-8")
    assert bound_spec(tmp_path / "text") is None
