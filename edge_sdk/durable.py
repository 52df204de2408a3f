"""SQLite databases whose commits survive a power cut."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edge_sdk.at_rest.digests import damaged_table, declared, digest_rows, row_digest
from edge_sdk.at_rest.files import create_private, make_private_folder, replace_durably
from edge_sdk.at_rest.write_ahead_log import cut_uncommitted, has_lost_commits
from edge_sdk.errors import Damaged, InUse, StoreError

APPLICATION_ID = 0x4544474B
"""The SQLite application id of this project's files, `EDGK`, which protects databases of other programs."""


_FILE_HEADER_BYTES = 100
_LEAST_BYTES = 512
"""The smallest page of SQLite."""
LEAST_LOG_BYTES = 1024 * 1024
"""The minimum bound of a write-ahead log; after a copy the log is cut to this length."""
_FULL = "database or disk is full"
SCHEMA_VERSION = 1
"""The SQLite user version of a file whose rows have digests; older files have 0."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Describes a file's contents, for errors about damage."""

    lost: str
    """The data that would be lost with the file."""
    remedy: str
    """The owner's next step."""


class FileForm(NamedTuple):
    """Properties of a database file that are fixed when it is created."""

    page_bytes: int = 4096
    shrinks: bool = False
    """Whether each commit returns the pages that it frees, so that deleted data is never copied from the log."""


_PLAIN = FileForm()


def file_form(path: Path) -> FileForm | None:
    """Return the form of a database file, or None if it cannot be read; opening it then reports why."""
    try:
        with path.open("rb") as file:
            head = file.read(_FILE_HEADER_BYTES)
    except OSError:
        return None
    if len(head) < _FILE_HEADER_BYTES:
        return None
    page_bytes = int.from_bytes(head[16:18], "big")
    return FileForm(65536 if page_bytes == 1 else page_bytes, any(head[52:56]))  # the largest root page is named there


def open_database(
    path: Path | None, schema: str, *, form: FileForm = _PLAIN, contents: Contents | None = None
) -> sqlite3.Connection:
    """Open a database with the only connection to its file, which also keeps a second process away.

    path: None for a database in memory.  schema: SQL statements that create missing tables.  form: for a new file.
    contents: described in errors.  Commits use WAL with synchronous=FULL: in 200 simulated power cuts, FULL lost no
    acknowledged row and NORMAL lost 144.  The whole file is checked; rows of a file from before there were digests get
    them.  Raises StoreError, or Damaged.
    """
    with as_store_error(path, contents):
        if path is not None:
            make_private_folder(path.parent)
        log = _log_of(path)
        size = path.stat().st_size if path is not None and path.is_file() else 0
        if (log and not size) or 0 < size < _LEAST_BYTES:  # SQLite would treat it as a new file, and delete the log
            raise Damaged(path, f"it has {size} bytes")
        if path is not None:
            create_private(path)
        connection = sqlite3.connect(
            path or ":memory:",
            isolation_level=None,
            check_same_thread=False,
            timeout=0.5,
            cached_statements=0,  # a cached statement keeps a copy of its last values, such as a whole model
        )
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            check_application_id(connection, path)
            connection.execute(f"PRAGMA page_size={form.page_bytes}")
            if form.shrinks and not size:  # in an existing file the PRAGMA would write
                connection.execute("PRAGMA auto_vacuum=FULL")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA journal_size_limit={LEAST_LOG_BYTES}")
            connection.create_function("digest", -1, row_digest, deterministic=True)
            if path is not None and log:
                _check_log(connection, path, log)
            check_whole(connection, schema, path)
        except Damaged:
            connection.close()
            if path is not None and log:  # closing deletes the log, and with it the evidence of the damage
                replace_durably(path.with_name(f"{path.name}-wal"), log)
            raise
        except BaseException:
            connection.close()
            raise
    return connection


def is_emptied(path: Path) -> bool:
    """Whether a file has neither bytes nor a log: it was emptied, or its first start was cut short."""
    with as_store_error(path):
        return path.is_file() and not path.stat().st_size and not _log_of(path)


def refuse_emptied(path: Path, contents: Contents) -> None:
    """Raise Damaged for an empty file, if the database is known to have been written before."""
    if is_emptied(path):
        raise Damaged(path, "it is empty", contents.lost, contents.remedy)


def _log_of(path: Path | None) -> bytes:
    """Return the write-ahead log left by a killed process, or empty without one."""
    log = None if path is None else path.with_name(f"{path.name}-wal")
    return log.read_bytes() if log is not None and log.exists() else b""


def _check_log(connection: sqlite3.Connection, path: Path, log: bytes) -> None:
    """Copy the log of a killed process into the file, and empty it.  Raises Damaged if commits in it are lost."""
    (_, frames, _) = _copied(connection, path, "PASSIVE")
    if has_lost_commits(path, log, max(0, frames)):
        raise Damaged(path, "its log holds commits that cannot be read")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _copied(connection: sqlite3.Connection, path: Path, how: str) -> tuple[int, int, int]:
    """Copy the log into the file; returns SQLite's (busy, frames in the log, frames copied).

    On a full disk, the frames of the failed transaction are cut off first, to make room for the copy.
    """
    copy = f"PRAGMA wal_checkpoint({how})"
    try:
        found: tuple[int, int, int] = connection.execute(copy).fetchone()
    except sqlite3.OperationalError as error:
        if str(error) != _FULL:
            raise
        cut_uncommitted(path.with_name(f"{path.name}-wal"))
        found = connection.execute(copy).fetchone()
    return found


def bound_log(connection: sqlite3.Connection, page_bytes: int, most_bytes: int, times: int = 2) -> None:
    """Let the log grow to `times` the file's content, from 1 MiB to `most_bytes`; call it at the end of a transaction.

    Disk use then follows the content.  Copying the log adds at most 1 / `times` of the writes.
    """
    ((pages,), (free,)) = (connection.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "freelist_count"))
    log_bytes = min(max(times * (pages - free) * page_bytes, LEAST_LOG_BYTES), most_bytes)
    connection.execute(f"PRAGMA wal_autocheckpoint={log_bytes // page_bytes}")


def check_whole(connection: sqlite3.Connection, schema: str, path: Path | None) -> None:
    """Check pages, indexes and rows, and create missing parts of the schema.

    Raises Damaged if a row has changed since it was written, sqlite3.DatabaseError if rows may be missing.
    """
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found.splitlines()[-1])
    _set_up(connection, schema)
    if table := damaged_table(connection, schema):
        raise Damaged(path, f"a row of {table} does not match its digest")


def _set_up(connection: sqlite3.Connection, schema: str) -> None:
    """Create missing tables and digests in one transaction; writes nothing if all exist."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        raise sqlite3.DatabaseError(f"its version is {version}, this edge-sdk knows {SCHEMA_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement, _ in declared(schema):
            connection.execute(statement)
        if version < SCHEMA_VERSION:
            digest_rows(connection, schema)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class WatchedFile:
    """Detects that the file of an open database was deleted, and writes it again from the open connection."""

    def __init__(self, path: Path, reopen: Callable[[], sqlite3.Connection]) -> None:
        """reopen: returns a connection to the file, and creates the file if it is missing."""
        self._path, self._reopen = path, reopen
        self._id = _file_id(path)
        self._rescued: sqlite3.Connection | None = None
        """The contents of a deleted file, in memory until they are written again."""

    def mended(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Return the connection, or one to the file that was written again.

        Raises StoreError if that is impossible for now, or if another file has taken its place.
        """
        if self._rescued is None:
            found = _file_id(self._path)
            if found == self._id:
                return connection
            if found is not None:
                raise StoreError(f"{self._path}: another file is in its place; does another process use the folder?")
            with as_store_error(self._path):
                self._rescued = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                connection.backup(self._rescued)
            connection.close()  # before the new file exists: closing deletes the journal of the same name
        if _file_id(self._path) is None:
            # if only the database was deleted, closing left its log; a log alone would look like damage
            with as_store_error(self._path):
                self._path.with_name(f"{self._path.name}-wal").unlink(missing_ok=True)
        again = self._reopen()
        with as_store_error(self._path):
            self._rescued.backup(again)
        self._rescued.close()
        self._rescued, self._id = None, _file_id(self._path)
        return again


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return the file's device and inode, or None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_connection_of: weakref.WeakKeyDictionary[object, sqlite3.Connection] = weakref.WeakKeyDictionary()
"""Connections to files by the object that uses each."""


def leave_to_parent(owner: object, connection: sqlite3.Connection) -> None:
    """Keep forked children from closing this connection to a file, which `owner` uses.

    When a child exits, SQLite would treat it as the file's last user, and delete the journal that the parent writes.
    """
    _connection_of[owner] = connection


def _keep_connections() -> None:
    """Leak a reference to each of the parent's connections, so that nothing in this child closes them."""
    for connection in list(_connection_of.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_connections)


def check_application_id(connection: sqlite3.Connection, path: Path | None) -> None:
    """Raise StoreError if the file has tables and belongs to another program."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if tables and application_id != APPLICATION_ID:
        raise StoreError(f"{path}: is a database of another program; move it away, or give another folder")


_BROKEN = ("user-defined function", "no such column", "no such table", "decode")
"""Parts of SQLite's messages that point to damaged text, in a row or in a table's definition."""


def file_lock(path: Path, wait_s: float = 0.0) -> sqlite3.Connection:
    """Lock an empty SQLite file, until the returned connection is closed or the process dies, on any system.

    Raises InUse if this or another process still holds the lock after `wait_s` seconds.
    """
    with as_store_error(path):
        lock = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except BaseException:
            lock.close()
            raise
    return lock


@contextmanager
def as_store_error(path: Path | None, contents: Contents | None = None) -> Iterator[None]:
    """Turn errors of the disk and of SQLite into StoreError with a remedy; contents: described in the error."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; check the folder's rights and free space") from error
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            raise InUse(
                f"{path}: this or another process is using it: end that one, or give each device its own folder"
            ) from error
        if any(each in text for each in _BROKEN):
            raise _damage(path, text, contents) from error
        raise StoreError(f"{path}: {text}; check free space and the folder's rights") from error
    except sqlite3.ProgrammingError as error:
        raise StoreError(f"{path}: was used after it was closed; open it again") from error
    except sqlite3.DatabaseError as error:
        raise _damage(path, str(error), contents) from error
    except Damaged as error:
        if contents is None:
            raise
        raise _damage(path, error.found, contents) from error


def _damage(path: Path | None, found: str, contents: Contents | None) -> Damaged:
    return Damaged(path, found) if contents is None else Damaged(path, found, contents.lost, contents.remedy)


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """Run the statements of the `with` block in one transaction: all or none take effect, durable on exit.

    Raises StoreError.
    """
    with as_store_error(path):
        try:  # BEGIN is inside, because an interrupt may come right after it
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # on a full disk SQLite has rolled back already
                connection.execute("ROLLBACK")
            raise


def write(connection: sqlite3.Connection, path: Path | None, statements: Callable[[], object]) -> None:
    """Run statements in one transaction.  On a full disk, empty the log by copying it, and run them again.

    Raises StoreError.
    """
    try:
        with transaction(connection, path):
            statements()
    except StoreError as error:
        if path is None or str(error.__cause__) != _FULL:
            raise
        with suppress(sqlite3.Error, OSError):
            _copied(connection, path, "TRUNCATE")
        with transaction(connection, path):
            statements()
