"""Stores what a device must keep over a power cut: its Welcome, its state before the round, and the exchanges since.

The model is saved once a round.  For each exchange one transaction stores the Assign and the upload that answers it.
After a crash the device restores the round's start and computes those Assigns again, which gives the same bits.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edge_sdk.at_rest.digests import checked_row, with_digest
from edge_sdk.durable import (
    Contents,
    FileForm,
    WatchedFile,
    as_store_error,
    bound_log,
    leave_to_parent,
    open_database,
    write,
)
from edge_sdk.methods.contract.job import SECRET_BYTES
from edge_sdk.protocol.frames.frame_parts import Frame


@dataclass(frozen=True, slots=True)
class RoundStart:
    """The state of a device before a round."""

    round: int
    model: bytes
    """Model and optimiser, as `Model.state_bytes` gives them."""
    method: bytes
    """The method's state, serialised."""
    data: bytes = b""
    """The id of the snapshot that the round trains on, or empty if the device's data do not change."""


@dataclass(frozen=True, slots=True)
class FinishedExchange:
    """An exchange that a device has computed."""

    round: int
    exchange: int
    assign: Frame
    """The frame of its Assign."""
    upload: bytes
    """The frame of its upload; the same bytes are sent each time."""
    receipted: bool = False
    """Whether the coordinator's receipt has come."""


class Store(Protocol):
    """The state that a device keeps for itself; the methods raise StoreError if the disk fails."""

    boot_epoch: int
    """How often this device has been started; counted in the store, so that no clock is needed."""
    secret: bytes
    """32 random bytes, drawn once, from which noise is drawn; they never leave the device."""

    def welcome(self) -> bytes | None:
        """Return the frame of the last Welcome, if any."""

    def save_welcome(self, frame: bytes) -> None:
        """Replace the stored Welcome.  Durable on return."""

    def enter_run(self, welcome: bytes, start: RoundStart, origin: bytes = b"") -> None:
        """Replace everything by the Welcome of a run and its first start, atomically.  Durable on return.

        origin: identifies the model that the app brought, or b"" if unknown.
        """

    def origin(self) -> bytes:
        """Return the identifier of the model that the state began with, or b"" if unknown."""

    def adopt(self, start: RoundStart, origin: bytes) -> None:
        """Replace the start and the origin atomically, and keep the finished exchanges.  Durable on return."""

    def round_start(self) -> RoundStart | None:
        """Return the start from which the device can be restored, or None before the first save."""

    def saved_round(self) -> int | None:
        """Return the round of the last saved start, or None before the first save."""

    def rest(self, start: Callable[[], RoundStart]) -> None:
        """Note that a round is over.  start: returns the start of the next round, until that round begins.

        Between rounds a store in memory then needs no copy of the model.  A store on a disk does nothing.
        """

    def begin_round(self, start: RoundStart) -> None:
        """Note that a round begins.  The start is saved later, with the first exchange of the round.

        A store in memory keeps the start from now on.  A store on a disk does nothing, which saves a sync: until the
        first exchange is saved, the older start and the exchanges since restore the device to the same state.
        """

    def finished(self) -> tuple[FinishedExchange, ...]:
        """Return the exchanges saved since the last start was saved, in order."""

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """Return the upload's frame of one of these exchanges, or None if it is not stored."""

    def save(self, done: FinishedExchange, start: RoundStart | None = None) -> None:
        """Add an exchange.  A start, if given, first replaces everything stored before.  Durable on return."""

    def save_start(self, start: RoundStart) -> None:
        """Replace everything by a new start.  Durable on return."""

    def mark_receipted(self, round_: int, exchange: int) -> None:
        """Note that an upload has its receipt.  Not durable at once: if the note is lost, the upload is sent again."""

    def check(self) -> str:
        """Check that the state is still stored; returns a line about a repaired fault, or "" if all is well."""

    def close(self) -> None:
        """Close the file."""


@dataclass(slots=True)
class _InMemory:
    """An exchange in a MemoryStore."""

    assign: Frame
    upload: bytes
    """Empty once its receipt has come and it need not be sent again."""
    receipted: bool


@dataclass
class MemoryStore:
    """A store in memory, for simulations; its contents end with the process."""

    boot_epoch: int = 1
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)
    _welcome: bytes | None = None
    _origin: bytes = b""
    _start: RoundStart | None = None
    _saved_round: int | None = None
    _done: dict[tuple[int, int], _InMemory] = field(default_factory=dict)
    _resting: Callable[[], RoundStart] | None = None
    """Returns the start of the next round between two rounds, or None during a round."""
    changes: int = field(default=0, compare=False)
    """How often the contents have changed, so that a checkpoint writes only what is new."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the contents for a copy, without the reference to the device that fills the store."""
        return {**vars(self), "_start": self.round_start(), "_resting": None}

    def welcome(self) -> bytes | None:
        """Return the frame of the last Welcome."""
        return self._welcome

    def save_welcome(self, frame: bytes) -> None:
        """Keep the frame in memory."""
        self._welcome = frame
        self.changes += 1

    def enter_run(self, welcome: bytes, start: RoundStart, origin: bytes = b"") -> None:
        """Keep them in memory."""
        self._welcome, self._origin = welcome, origin
        self.save_start(start)

    def origin(self) -> bytes:
        """Return the origin."""
        return self._origin

    def adopt(self, start: RoundStart, origin: bytes) -> None:
        """Keep both in memory."""
        self._resting = None
        self._start, self._saved_round, self._origin = start, start.round, origin
        self.changes += 1

    def round_start(self) -> RoundStart | None:
        """Return the start of the current round, or between two rounds that of the next one."""
        return self._start if self._resting is None else self._resting()

    def rest(self, start: Callable[[], RoundStart]) -> None:
        """Forget the start of the round that is over."""
        self.lay_down(start)
        self.changes += 1

    def lay_down(self, start: Callable[[], RoundStart]) -> None:
        """Keep the start elsewhere.  start: returns it."""
        self._start, self._resting = None, start

    def hold(self) -> None:
        """Copy the start of the next round now, because the device that could compute it will be switched off."""
        self._start, self._resting = self.round_start(), None

    @property
    def up_to_date(self) -> bool:
        """Whether its start is the device's present state: nothing was computed since."""
        start = self._start
        return self._resting is not None or (start is not None and all(start.round > each for each, _ in self._done))

    def forget_receipted(self) -> None:
        """Drop uploads that need not be sent again, as the next round would."""
        for done in self._done.values():
            if done.receipted:
                done.upload = b""

    def saved_round(self) -> int | None:
        """Return the round of the start that was saved last."""
        return self._saved_round

    def begin_round(self, start: RoundStart) -> None:
        """Keep the start of the round, and drop older uploads that have their receipt."""
        self._start, self._resting = start, None
        self.changes += 1
        self.forget_receipted()

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """Return the upload's frame."""
        done = self._done.get((round_, exchange))
        return None if done is None else done.upload or None

    def finished(self) -> tuple[FinishedExchange, ...]:
        """Return the exchanges in order."""
        return tuple(
            FinishedExchange(*key, done.assign, done.upload, done.receipted) for key, done in sorted(self._done.items())
        )

    def save(self, done: FinishedExchange, start: RoundStart | None = None) -> None:
        """Add the exchange."""
        if start is not None:
            self.save_start(start)
        self._done[done.round, done.exchange] = _InMemory(done.assign, done.upload, done.receipted)
        self.changes += 1

    def save_start(self, start: RoundStart) -> None:
        """Replace everything by the start."""
        self._start, self._saved_round, self._resting = start, start.round, None
        self._done = {}
        self.changes += 1

    def mark_receipted(self, round_: int, exchange: int) -> None:
        """Mark the exchange."""
        done = self._done.get((round_, exchange))
        if done is not None:
            done.receipted = True
            self.changes += 1

    def check(self) -> str:
        """Return that nothing is wrong."""
        return ""

    def close(self) -> None:
        """Do nothing."""


_PAGE_BYTES = 1024
"""The page size of a new file.  Small, because each small exchange commits five pages, and flash cards wear out."""
_LOG_BYTES = 4 * 1024 * 1024
"""The maximum size of the log, which a card can spare."""
_LOG_TIMES = 3
"""The log's length over the content's.  A round of 300 kB and eight uploads writes 2.0 times its content at 2, and 1.6
times at 3."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS start (round INTEGER NOT NULL, model BLOB NOT NULL, method BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS done (
    round INTEGER NOT NULL, exchange INTEGER NOT NULL, assign BLOB NOT NULL, upload BLOB NOT NULL,
    receipted INTEGER NOT NULL DEFAULT 0, digest BLOB, PRIMARY KEY (round, exchange));
"""
CONTENTS = Contents(
    "this device's model, and its part in the present run",
    "--quarantine (of Agent: quarantine=True) sets the file aside and joins again from the start",
)
_PUT = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_RECEIPTED = """
UPDATE done SET receipted = 1, digest = digest(round, exchange, assign, upload, 1) WHERE round = ? AND exchange = ?"""


class SqliteStore:
    """A store in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._opened()
        self._file = WatchedFile(path, self._opened)
        self._mended = ""
        self._receipted: set[tuple[int, int]] = set()
        self._unreceipted: tuple[tuple[int, int], bytes] | None = None
        """((round, exchange), frame) of the last saved upload, cached until its receipt because it is sent next."""
        try:
            self.boot_epoch = int(self._get("boot_epoch") or b"0") + 1
            self.secret = self._get("secret") or secrets.token_bytes(SECRET_BYTES)
            rows = [with_digest("boot_epoch", str(self.boot_epoch).encode()), with_digest("secret", self.secret)]
            self._write(lambda: self._db.executemany(_PUT, rows))
        except BaseException:
            self._db.close()
            raise

    def welcome(self) -> bytes | None:
        """Return the frame of the last Welcome."""
        return self._get("welcome")

    def save_welcome(self, frame: bytes) -> None:
        """Write the frame durably."""
        self._put("welcome", frame)

    def enter_run(self, welcome: bytes, start: RoundStart, origin: bytes = b"") -> None:
        """Write all in one transaction."""
        rows = [with_digest("welcome", welcome), with_digest("origin", origin)]
        self._write(lambda: self._begin(start, rows))
        self._unreceipted = None

    def origin(self) -> bytes:
        """Read the origin."""
        return self._get("origin") or b""

    def adopt(self, start: RoundStart, origin: bytes) -> None:
        """Write both in one transaction."""
        row = with_digest("origin", origin)
        self._write(lambda: self._replace_start(start, [row]))

    def round_start(self) -> RoundStart | None:
        """Return the start that was saved last."""
        row = self._one("SELECT * FROM start")
        return RoundStart(row[0], row[1], row[2], self._get("data") or b"") if row else None

    def saved_round(self) -> int | None:
        """Return the round of the saved start."""
        with as_store_error(self._path):
            row = self._db.execute("SELECT round FROM start").fetchone()
        return int(row[0]) if row else None

    def rest(self, start: Callable[[], RoundStart]) -> None:
        """Do nothing: the start that was saved last stays, with the exchanges since."""

    def begin_round(self, start: RoundStart) -> None:
        """Do nothing: the start is written with the first exchange of the round."""

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """Return the frame that was saved last, or read an earlier one."""
        if self._unreceipted is not None and self._unreceipted[0] == (round_, exchange):
            return self._unreceipted[1]
        row = self._one("SELECT * FROM done WHERE round = ? AND exchange = ?", round_, exchange)
        return row[3] if row else None

    def finished(self) -> tuple[FinishedExchange, ...]:
        """Read the exchanges in order."""
        with as_store_error(self._path, CONTENTS):
            found = self._db.execute("SELECT * FROM done ORDER BY round, exchange").fetchall()
            rows = [checked_row(self._path, row) for row in found]
        return tuple(FinishedExchange(r, e, a, u, bool(seen) or (r, e) in self._receipted) for r, e, a, u, seen in rows)

    def save(self, done: FinishedExchange, start: RoundStart | None = None) -> None:
        """Write the exchange, the start and pending receipts in one transaction."""
        row = with_digest(done.round, done.exchange, bytes(done.assign), done.upload, int(done.receipted))

        def statements() -> None:
            if start is None:
                self._db.executemany(_RECEIPTED, self._receipted)
            else:
                self._begin(start)
            self._db.execute("INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?, ?)", row)

        self._write(statements)
        self._receipted.clear()
        self._unreceipted = (done.round, done.exchange), done.upload

    def save_start(self, start: RoundStart) -> None:
        """Replace everything by the start, in one transaction."""
        self._write(lambda: self._begin(start))
        self._unreceipted = None

    def mark_receipted(self, round_: int, exchange: int) -> None:
        """Note the receipt in memory; it is written with the next exchange, which saves a sync of the disk."""
        self._receipted.add((round_, exchange))
        if self._unreceipted is not None and self._unreceipted[0] == (round_, exchange):
            self._unreceipted = None

    def check(self) -> str:
        """Write the file again if it was deleted.  Raises StoreError if another file has taken its place."""
        self._mend()
        line, self._mended = self._mended, ""
        return line

    def _mend(self) -> None:
        before, self._db = self._db, self._file.mended(self._db)
        if self._db is not before:
            self._mended = (
                f"{self._path} was deleted while this device runs, and is written again; stop the device first"
            )

    def _write(self, statements: Callable[[], object]) -> None:
        """Run statements in one transaction, in a file that still exists."""
        self._mend()

        def all_of_it() -> None:
            statements()
            bound_log(self._db, _PAGE_BYTES, _LOG_BYTES, _LOG_TIMES)

        write(self._db, self._path, all_of_it)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _opened(self) -> sqlite3.Connection:
        db = open_database(self._path, _SCHEMA, form=FileForm(_PAGE_BYTES), contents=CONTENTS)
        leave_to_parent(self, db)
        with as_store_error(self._path):
            # some builds of SQLite overwrite deleted rows with zeros: half as many writes again on a flash card
            db.execute("PRAGMA secure_delete=FAST")
        return db

    def _begin(self, start: RoundStart, rows: Sequence[tuple[object, ...]] = ()) -> None:
        self._db.execute("DELETE FROM done")
        self._replace_start(start, rows)

    def _replace_start(self, start: RoundStart, rows: Sequence[tuple[object, ...]] = ()) -> None:
        """Replace the start, and the given rows of the table `meta`."""
        self._db.execute("DELETE FROM start")
        self._db.execute("INSERT INTO start VALUES (?, ?, ?, ?)", with_digest(start.round, start.model, start.method))
        self._db.executemany(_PUT, [*rows, with_digest("data", start.data)])

    def _one(self, query: str, *values: int | str) -> tuple[Any, ...] | None:
        """Return the only row, without its digest."""
        with as_store_error(self._path, CONTENTS):
            row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
            return None if row is None else checked_row(self._path, row)

    def _get(self, name: str) -> bytes | None:
        row = self._one("SELECT * FROM meta WHERE name = ?", name)
        return None if row is None else bytes(row[1])

    def _put(self, name: str, value: bytes) -> None:
        self._write(lambda: self._db.execute(_PUT, with_digest(name, value)))
