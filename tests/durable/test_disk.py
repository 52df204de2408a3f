"""Disks that will not have it: a StoreError that names file, cause and remedy, and what was there before stays."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from coordinator.ledger import Ledger, Row
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.durable import transaction
from edge_sdk.errors import Damaged, StoreError
from edge_sdk.protocol.exchange_id import ExchangeId

OPENERS = pytest.mark.parametrize("opener", [Ledger, SqliteStore])
PLACE = ExchangeId(0, 0)


def refused(opener, path, error=StoreError) -> str:
    with pytest.raises(error) as caught:
        opener(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@OPENERS
def test_a_file_has_one_user(opener, tmp_path):
    first = opener(tmp_path / "state.db")
    assert "another process" in refused(opener, tmp_path / "state.db")
    first.close()
    opener(tmp_path / "state.db").close()


@OPENERS
@pytest.mark.parametrize("garbage", [b"once upon a time " * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_garbage_is_refused_and_left_alone(opener, tmp_path, garbage):
    path = tmp_path / "state.db"
    path.write_bytes(garbage)
    assert "--quarantine" in refused(opener, path, Damaged)
    assert path.read_bytes() == garbage


@OPENERS
def test_a_database_of_another_program_is_refused_and_left_alone(opener, tmp_path, foreign_database):
    before = foreign_database(tmp_path / "state.db")
    assert "of another program" in refused(opener, tmp_path / "state.db")
    assert (tmp_path / "state.db").read_bytes() == before


@OPENERS
def test_a_read_only_folder(opener, read_only_folder):
    assert "check" in refused(opener, read_only_folder / "new.db")
    assert "check" in refused(opener, read_only_folder / "old.db")
    assert "Permission denied; check" in refused(opener, read_only_folder / "more" / "new.db")


@OPENERS
def test_a_folder_in_place_of_the_file_and_a_file_in_place_of_the_folder(opener, tmp_path):
    (tmp_path / "state.db").mkdir()
    assert "check" in refused(opener, tmp_path / "state.db")
    (tmp_path / "file").touch()
    assert "check the folder's rights" in refused(opener, tmp_path / "file" / "state.db")


@OPENERS
def test_a_disk_that_is_full_from_the_start(opener, tmp_path, small_disk):
    with small_disk(2000):
        assert "check free space" in refused(opener, tmp_path / "state.db")
    opener(tmp_path / "state.db").close()


def test_a_ledger_on_a_full_disk_keeps_what_it_has_and_goes_on_when_there_is_room(tmp_path, small_disk):
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.commit([Row(PLACE, "a", b"first")])
    ledger.close_exchange(PLACE, ("a",), now=False)
    with small_disk(100_000):
        for _ in range(2):  # a fault of the disk is no state of ours
            with pytest.raises(StoreError, match=r"ledger\.db: .*I/O error; .*space"):
                ledger.commit([Row(ExchangeId(0, 1), "b", bytes(200_000)), Row(ExchangeId(0, 1), "c", b"small")])
            assert not ledger.has(ExchangeId(0, 1), "c")
            assert ledger.uploads(PLACE) == {"a": b"first"}
        with pytest.raises(StoreError, match="check free space"):
            ledger.checkpoint(1, bytes(200_000), {})
        assert ledger.last_checkpoint() is None
        assert ledger.uploads(PLACE) == {"a": b"first"}
    ledger.commit([Row(ExchangeId(0, 1), "b", bytes(200_000))])
    assert ledger.closed(0) == {0: ("a",)}  # what waited for a commit was not lost with the one that failed
    ledger.close()
    again = Ledger(path)
    assert again.uploads(PLACE) == {"a": b"first"}
    assert again.uploads(ExchangeId(0, 1)) == {"b": bytes(200_000)}
    again.close()


def test_a_store_on_a_full_disk_keeps_what_it_has_and_goes_on_when_there_is_room(tmp_path, small_disk):
    store = SqliteStore(tmp_path / "device.db")
    start, first, big = (
        RoundStart(0, b"model", b""),
        FinishedExchange(0, 0, b"a", b"u"),
        FinishedExchange(0, 1, b"a", bytes(200_000)),
    )
    store.save(first, start)
    store.mark_receipted(0, 0)
    with small_disk(100_000):
        for save in (lambda: store.save(big), lambda: store.save_start(RoundStart(1, bytes(200_000), b""))):
            with pytest.raises(StoreError, match=r"device\.db: .*check free space"):
                save()
        assert store.round_start() == start
        assert [each.upload for each in store.finished()] == [b"u"]
    store.save(big)
    store.close()
    again = SqliteStore(tmp_path / "device.db")
    assert [(each.exchange, each.receipted) for each in again.finished()] == [(0, True), (1, False)]
    again.close()


def test_a_copy_that_the_disk_will_not_have(tmp_path, small_disk):
    ledger = Ledger(None)
    ledger.commit([Row(PLACE, "a", bytes(200_000))])
    with small_disk(100_000), pytest.raises(StoreError, match=r"copy\.db: .*check free space"):
        ledger.copy_to(tmp_path / "copy.db")
    with pytest.raises(StoreError, match=r"nowhere/copy\.db: "):
        ledger.copy_to(tmp_path / "nowhere" / "copy.db")
    ledger.close()


def test_a_copy_into_a_read_only_folder(read_only_folder):
    ledger = Ledger(None)
    with pytest.raises(StoreError, match=r"old\.db: Permission denied; check"):
        ledger.copy_to(read_only_folder / "old.db")
    ledger.close()


def test_an_error_of_ours_undoes_the_transaction_and_comes_through():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")

        def insert_and_fail():
            with transaction(connection, None):
                connection.execute("INSERT INTO t VALUES (1)")
                raise KeyError

        with pytest.raises(KeyError):
            insert_and_fail()
        assert connection.execute("SELECT COUNT(*) FROM t").fetchone() == (0,)
        with transaction(connection, None):
            connection.execute("INSERT INTO t VALUES (2)")
        assert connection.execute("SELECT x FROM t").fetchall() == [(2,)]


class _InterruptedAfterBegin(sqlite3.Connection):
    """Ctrl-C arrives when BEGIN is done and nothing else is."""

    def execute(self, sql, *values):
        cursor = super().execute(sql, *values)
        if sql.startswith("BEGIN"):
            raise KeyboardInterrupt
        return cursor


def test_an_interrupt_right_after_begin_leaves_no_transaction_open():
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=_InterruptedAfterBegin)) as connection:
        with pytest.raises(KeyboardInterrupt), transaction(connection, None):
            pass
        assert not connection.in_transaction
