"""`edge-sdk lab backup` and `restore`: a run directory in one file, and back under a new run id."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from coordinator.ledger import Ledger
from edge_sdk.cli import main

MODEL = f"models/{'ab' * 32}.onnx"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    ledger = Ledger(folder / "checkpoint" / "ledger.db")
    ledger.bind(b"spec")
    ledger.enrol("a", 3, b"hello")
    ledger.checkpoint(7, b"state", {"skips": 2}, history={6: {"result": {}}})
    ledger.close()
    for name in ("log.jsonl", MODEL, "models/half.part", "rounds.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}\n", encoding="utf-8")
    return folder


def test_a_run_comes_back_with_its_rounds_and_devices_under_a_new_id(tmp_path: Path, run: Path) -> None:
    file, again = tmp_path / "run.tar", tmp_path / "again"
    assert main(["lab", "backup", str(run), str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["lab", "restore", str(file), str(again)]) == 0
    before, after = (Ledger(folder / "checkpoint" / "ledger.db") for folder in (run, again))
    try:
        assert after.last_checkpoint() == before.last_checkpoint()
        assert after.enrolled() == before.enrolled()
        assert after.spec == before.spec
        assert after.run not in {b"", before.run}
    finally:
        before.close()
        after.close()
    kept = {path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()}
    assert kept == {"checkpoint/ledger.db", "log.jsonl", MODEL, "rounds.csv"}
    assert all((again / name).read_text(encoding="utf-8") == "{}\n" for name in kept - {"checkpoint/ledger.db"})


def test_a_file_that_is_no_part_of_a_run_is_refused(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.tar"
    assert main(["lab", "backup", str(run), str(file)]) == 0
    with tarfile.open(file, "a") as archive:
        archive.add(run / "log.jsonl", arcname="../models/" + "0" * 64 + ".onnx")
    assert main(["lab", "restore", str(file), str(tmp_path / "again")]) == 2
    assert "is damaged: its list of files" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_a_running_coordinator_is_not_backed_up(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(run / "checkpoint" / "ledger.db")
    try:
        assert main(["lab", "backup", str(run), str(tmp_path / "run.tar")]) == 2
    finally:
        ledger.close()
    assert "its coordinator is running; stop it" in capsys.readouterr().err


def test_damage_is_one_line(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.tar"
    assert main(["lab", "backup", str(run), str(file)]) == 0
    whole = bytearray(file.read_bytes())
    place = whole.index(b"SQLite format 3") + 5000
    whole[place] ^= 1
    file.write_bytes(whole)
    assert main(["lab", "restore", str(file), str(tmp_path / "again")]) == 2
    assert "is damaged: checkpoint/ledger.db" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
    file.write_bytes(b"no tar")
    assert main(["lab", "restore", str(file), str(tmp_path / "again")]) == 2
    assert "is not from edge-sdk lab backup" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.tar"
    assert main(["lab", "backup", str(run), str(file)]) == 0
    assert main(["lab", "backup", str(run), str(file)]) == 2
    assert main(["lab", "restore", str(file), str(run)]) == 2
    assert main(["lab", "backup", str(tmp_path), str(tmp_path / "other.tar")]) == 2
    assert capsys.readouterr().err.count("\n") == 3
