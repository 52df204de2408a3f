"""Damaged state is set aside on request, and its owner begins anew; without that it is left alone."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import fleets
import pytest
from test_damage import ROOM, fill_ledger, fill_samples, fill_store

from coordinator.deploy import LEDGER, lost_rounds, open_ledger
from coordinator.ledger import Ledger, Row
from edge_sdk.at_rest.files import replace_durably, set_aside
from edge_sdk.device.store import SqliteStore
from edge_sdk.errors import Damaged, StoreError, UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.samples.store import SampleStore
from edge_sim.runs.runner import run


def damage(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :: 97] = bytes(len(content[len(content) // 2 :: 97]))
    path.write_bytes(content)
    return bytes(content)


def test_a_file_and_its_log_are_renamed_together(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    for number in (1, 2):
        for suffix in ("", "-wal"):
            path.with_name(path.name + suffix).write_text(f"{number}{suffix}")
        assert set_aside(path) == tmp_path / f"lab.db.damaged-{number}"
    names = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert names == {f"lab.db.damaged-{n}{suffix}": f"{n}{suffix}" for n in (1, 2) for suffix in ("", "-wal")}


def test_a_log_that_was_set_aside_alone_is_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "lab.db-wal").write_text(str(number))
        set_aside(tmp_path / "lab.db")
    assert {each.read_text() for each in tmp_path.iterdir()} == {"1", "2"}


def test_a_ledger_whose_log_alone_is_left_can_be_set_aside(tmp_path: Path) -> None:
    (tmp_path / LEDGER).parent.mkdir()
    log = tmp_path / f"{LEDGER}-wal"
    log.write_bytes(bytes(5000))
    for resume in (True, False):
        with pytest.raises(Damaged):
            open_ledger(tmp_path, resume=resume, quarantine=False, tell=print)
    with closing(open_ledger(tmp_path, resume=True, quarantine=True, tell=str)) as ledger:
        assert ledger.enrolled() == {}
    assert [each.read_bytes() for each in tmp_path.rglob("*damaged*")] == [bytes(5000)]


def test_a_damaged_ledger_is_set_aside_and_the_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    fill_ledger(path)
    content, said = damage(path), list[str]()
    with pytest.raises(Damaged, match="--quarantine"):
        open_ledger(tmp_path, resume=True, quarantine=False, tell=said.append)
    assert (path.read_bytes(), said) == (content, [])
    with closing(open_ledger(tmp_path, resume=True, quarantine=True, tell=said.append)) as ledger:
        assert ledger.enrolled() == {}
    (aside,) = path.parent.glob("*damaged*")
    assert aside.read_bytes() == content
    (line,) = said
    assert str(path) in line
    assert str(aside) in line


@pytest.mark.parametrize("resume", [False, True])
def test_a_ledger_that_another_coordinator_has_open_is_no_state_folder(tmp_path: Path, resume: bool) -> None:
    with (
        closing(open_ledger(tmp_path, resume=False, quarantine=False, tell=print)),
        pytest.raises(UsageError, match="--out") as found,
    ):
        open_ledger(tmp_path, resume=resume, quarantine=True, tell=print)
    assert str(found.value).startswith(f"{tmp_path}: a coordinator")


def test_an_empty_ledger_is_no_run_to_resume(tmp_path: Path) -> None:
    (tmp_path / LEDGER).parent.mkdir()
    (tmp_path / LEDGER).touch()
    with pytest.raises(Damaged):
        open_ledger(tmp_path, resume=True, quarantine=False, tell=print)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(UsageError):
        open_ledger(tmp_path, resume=True, quarantine=True, tell=print)


@pytest.mark.parametrize(
    ("text", "lost"), [('{"version": 1, "round": 9}', True), ('{"version": 1, "round": 5}', False), ("{", False)]
)
def test_a_ledger_that_knows_fewer_rounds_than_the_progress_file_is_told(tmp_path: Path, text: str, lost: bool) -> None:
    (tmp_path / "progress.json").write_text(text)
    said = lost_rounds(tmp_path, 4)
    assert all(str(tmp_path / name) in said for name in (LEDGER, "progress.json")) if lost else not said
    assert "\n" not in said


def test_damaged_samples_are_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "samples.db"
    fill_samples(path)
    damage(path)
    with pytest.raises(Damaged, match="quarantine"):
        SampleStore(path, **ROOM)
    with caplog.at_level(logging.WARNING), SampleStore(path, quarantine=True, **ROOM) as store:
        assert len(store) == 0
    assert "samples.db.damaged-1" in caplog.text


def test_an_empty_file_of_samples_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "samples.db"
    path.touch()
    for said in ("samples.db: is empty", ""):
        caplog.clear()
        with SampleStore(path, **ROOM) as store:
            assert len(store) == 0
        assert len(caplog.messages) == bool(said)
        assert said in caplog.text


def test_a_damaged_checkpoint_of_a_simulation_is_set_aside(pictures: Path, tmp_path: Path) -> None:
    tables = fleets.tables(pictures, "fedproto", devices=3, rounds=2)
    clean = run(tables, out=tmp_path / "clean")
    folder = tmp_path / "run"
    run(tables, out=folder)
    for name in ("summary.json", "progress.json"):  # as if it had been killed
        (folder / name).unlink(missing_ok=True)
    world = folder / "checkpoint" / "world.json"
    world.parent.mkdir(exist_ok=True)
    Ledger(world.with_name("ledger.db")).close()
    world.write_text("{}")
    with pytest.raises(Damaged, match="quarantine"):
        run(tables, out=folder, resume=True)
    again = run(tables, out=folder, resume=True, quarantine=True)
    assert [each.accuracy for each in again.devices] == [each.accuracy for each in clean.devices]
    assert (folder / "checkpoint.damaged-1" / "world.json").exists()


def test_each_call_that_replaces_a_file_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.json"
    real = {"fsync": os.fsync, "open": Path.open, "replace": Path.replace}
    failed = 0

    def failing(name: str, at: int) -> None:
        seen = []

        def call(*arguments: object, **named: object) -> object:
            seen.append(name)
            if len(seen) == at:
                raise OSError(28, "No space left on device")
            return real[name](*arguments, **named)

        monkeypatch.setattr(os if name == "fsync" else Path, name, call)

    for name, at in (("open", 1), ("fsync", 1), ("replace", 1), ("fsync", 2)):
        replace_durably(path, b"old")
        failing(name, at)
        with pytest.raises(OSError, match="No space"):
            replace_durably(path, b"new" * 1000)
        monkeypatch.undo()
        assert path.read_bytes() in (b"old", b"new" * 1000)
        replace_durably(path, b"newer")
        assert [each.name for each in tmp_path.iterdir()] == ["index.json"]
        failed += path.read_bytes() == b"newer"
    assert failed == 4


def test_a_file_is_synced_before_its_name_and_its_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fsync, replace = [], os.fsync, Path.replace

    def synced(handle: int) -> None:
        calls.append("folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file")
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    replace_durably(tmp_path / "file", b"content")
    assert calls == ["file", "rename", "folder"]


# -- deleted while it is open -----------------------------------------------------------------------------------------


DELETED = pytest.mark.parametrize("pattern", ["*", "*.db"], ids=["all files", "all but the log"])


@DELETED
def test_a_deleted_ledger_is_noticed_at_the_next_commit_and_written_again(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "run" / "ledger.db"
    fill_ledger(path)
    ledger = Ledger(path)
    before = ledger.enrolled()
    ledger.keep_orders({"drained": ["b"]})
    for file in path.parent.glob(pattern):
        file.unlink()
    row = Row(ExchangeId(1, 1), "a", b"frame")
    with pytest.raises(StoreError, match="deleted"):
        ledger.commit([row])
    ledger.commit([row])
    ledger.close()
    with closing(Ledger(path)) as again:
        assert again.enrolled() == before
        assert again.orders() == {"drained": ["b"]}
        assert again.uploads(row.place) == {"a": b"frame"}


@DELETED
def test_a_deleted_state_is_noticed_by_whatever_is_written_next(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "state" / "lab.db"
    fill_store(path)
    store = SqliteStore(path)
    for file in path.parent.glob(pattern):
        file.unlink()
    store.save_welcome(b"newer")
    assert "deleted" in store.check()
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'welcome'").fetchall() == [(b"newer",)]
