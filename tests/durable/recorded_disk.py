"""A disk that records what SQLite does to it, shows what a power cut would have left, and can fail at one call.

SQLite runs through apsw, whose virtual file system is written in Python; our code sees connections like those of the
standard library.  A power cut keeps what was synced.  Of what was written since, each sector of 512 bytes is kept or
lost by chance.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import apsw
import pytest

SECTOR_BYTES = 512
CHECKPOINT_PAGES = 12
"""So few pages go into the log before they are written into the file, that this happens often."""


@dataclass(frozen=True)
class Call:
    """One call that changes a disk."""

    what: str
    """open, write, truncate, sync or delete"""
    file: str
    offset: int = 0
    """For truncate: the new size."""
    data: bytes = b""


@dataclass
class Disk:
    """The calls so far."""

    calls: list[Call] = field(default_factory=list)
    fails_at: int = -1
    """The number of the call that fails; -1: none."""
    failed: bool = False

    def ask(self, call: Call) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 == self.fails_at:
            self.failed = True
            raise (apsw.FullError if call.what == "write" else apsw.IOError)("this call fails")


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self.disk, self.name = disk, name.filename() if isinstance(name, apsw.URIFilename) else name
        disk.ask(Call("open", self.name))
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # apsw's name
        self.disk.ask(Call("write", self.name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802  # apsw's name
        self.disk.ask(Call("truncate", self.name, size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802  # apsw's name
        self.disk.ask(Call("sync", self.name))
        super().xSync(flags)


class _System(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        super().__init__("recorded", base="")

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802  # apsw's name
        return _File(self.disk, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802  # apsw's name
        self.disk.ask(Call("delete", name))
        super().xDelete(name, sync)


@contextmanager
def _as_sqlite3() -> Iterator[None]:
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise sqlite3.DatabaseError(str(error)) from error
    except apsw.Error as error:
        raise sqlite3.OperationalError(str(error)) from error


class Connection:
    """What our code uses of a sqlite3.Connection, on a recorded disk."""

    replaced: ClassVar[dict[str, str]] = {}
    """Statements that are carried out in place of others."""

    def __init__(self, path: Any) -> None:
        with _as_sqlite3():
            memory = str(path) == ":memory:"
            self._db = apsw.Connection(str(path)) if memory else apsw.Connection(str(path), vfs="recorded")
            self._db.set_busy_timeout(100)

    def execute(self, statement: str, values: Iterable[Any] = ()) -> Connection:
        if statement.startswith("PRAGMA wal_autocheckpoint"):
            statement = f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}"
        with _as_sqlite3():
            self._rows = list(self._db.execute(self.replaced.get(statement, statement), tuple(values)))
            if "journal_mode" in statement:
                self._db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        return self

    def executemany(self, statement: str, several: Iterable[Iterable[Any]]) -> None:
        for values in list(several):
            self.execute(statement, values)

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def create_function(self, name: str, count: int, function: Callable[..., Any], *, deterministic: bool) -> None:
        self._db.create_scalar_function(name, function, count, deterministic=deterministic)

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def close(self) -> None:
        """As sqlite3 does: what fails while the log is written into the file is tried again at the next start."""
        with suppress(apsw.Error):
            self._db.close(force=True)


@contextmanager
def recorded(disk: Disk, monkeypatch: pytest.MonkeyPatch, *, synchronous: str = "FULL") -> Iterator[None]:
    """Let connections be on this disk as long as the context lasts."""
    system = _System(disk)
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "replaced", {"PRAGMA synchronous=FULL": f"PRAGMA synchronous={synchronous}"})
        patch.setattr(sqlite3, "connect", lambda path, **_options: Connection(path))
        try:
            yield
        finally:
            system.unregister()


class Files:
    """What is durable of the files on a disk, and what was written since."""

    def __init__(self) -> None:
        self.synced: dict[str, bytes] = {}
        self.since: dict[str, list[Call]] = {}

    def carry_out(self, call: Call) -> None:
        """One call more.  A file that is deleted is gone at once: SQLite deletes only what it needs no more."""
        if call.what == "sync":
            self.synced[call.file] = apply(self.synced.get(call.file, b""), self.since.pop(call.file, []))
        elif call.what == "delete":
            self.synced.pop(call.file, None)
            self.since.pop(call.file, None)
        elif call.what != "open":
            self.since.setdefault(call.file, []).append(call)

    def after_power_cut(self, rng: random.Random) -> dict[str, bytes]:
        """The files that a power cut leaves now."""
        left = dict(self.synced)
        for file, calls in self.since.items():
            left[file] = apply(left.get(file, b""), survivors(calls, rng))
        return left


def apply(content: bytes, calls: Iterable[Call]) -> bytes:
    """The content after these calls."""
    found = bytearray(content)
    for call in calls:
        if call.what == "truncate":
            del found[call.offset :]
            continue
        found.extend(bytes(max(0, call.offset - len(found))))
        found[call.offset : call.offset + len(call.data)] = call.data
    return bytes(found)


def survivors(calls: Iterable[Call], rng: random.Random) -> Iterator[Call]:
    """The calls that were not synced, as far as they reached the disk: all, none, or some sectors."""
    fate = rng.choice(("all", "none", "some", "some"))
    for call in calls:
        if fate == "all" or (fate == "some" and rng.random() < 0.5):
            yield call
        elif fate == "some" and call.what == "write":
            for at in range(0, len(call.data), SECTOR_BYTES):
                if rng.random() < 0.5:
                    yield Call("write", call.file, call.offset + at, call.data[at : at + SECTOR_BYTES])
