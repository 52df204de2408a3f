"""What a device must not lose: who welcomed it, its model at the round's start, the exchanges since, the outbox.

Once a round the model is saved, and with each exchange one transaction holds the Assign that came and the upload that
goes.  After a crash the device is rebuilt from the round's start by replaying those Assigns, which is exact.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from edge_sdk.durable import guarded, open_database, transaction
from edge_sdk.methods.noise import SECRET_BYTES


@dataclass(frozen=True, slots=True)
class RoundStart:
    """A device as it was before it began a round."""

    round: int
    model: bytes
    method: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """One exchange that a device has carried out."""

    round: int
    exchange: int
    assign: bytes
    """The frame that asked for it."""
    upload: bytes
    """The frame that answers it; the same bytes go out however often it is sent."""
    receipted: bool = False


class Store(Protocol):
    """Durable, device-local state."""

    boot_epoch: int
    """Starts of this device so far; no clock needed."""
    secret: bytes
    """32 bytes drawn once, which never leave this device: noise is drawn from them."""

    def welcome(self) -> bytes | None:
        """The frame of the last Welcome."""

    def save_welcome(self, frame: bytes) -> None:
        """Remember who took us in."""

    def start(self) -> RoundStart | None:
        """The last saved round start."""

    def started(self) -> int | None:
        """The round of the last start that was saved, not only held."""

    def hold(self, start: RoundStart) -> None:
        """A round begins: a store in memory holds its start from now on, in place of the one before.

        On a disk it is written with the round's first exchange, to spare the card a sync; until then the device is
        rebuilt from the start before and what was done since, which comes to the same.
        """

    def done(self) -> tuple[Done, ...]:
        """The exchanges carried out since the round before the last saved start, in order."""

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """The frame that answers one of them."""

    def save(self, done: Done, start: RoundStart | None = None) -> None:
        """Add an exchange; with a new start, which replaces everything before it.  Durable on return."""

    def save_start(self, start: RoundStart) -> None:
        """Replace everything with a new start.  Durable on return."""

    def receipted(self, round_: int, exchange: int) -> None:
        """Let go of an upload.  Not durable by itself: losing it costs one duplicate."""

    def close(self) -> None:
        """Release the file."""


@dataclass
class MemoryStore:
    """For simulation: nothing outlives the process."""

    boot_epoch: int = 1
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)
    _welcome: bytes | None = None
    _start: RoundStart | None = None
    _started: int | None = None
    _done: dict[tuple[int, int], Done] = field(default_factory=dict)

    def welcome(self) -> bytes | None:
        """See Store."""
        return self._welcome

    def save_welcome(self, frame: bytes) -> None:
        """See Store."""
        self._welcome = frame

    def start(self) -> RoundStart | None:
        """See Store."""
        return self._start

    def started(self) -> int | None:
        """See Store."""
        return self._started

    def hold(self, start: RoundStart) -> None:
        """See Store."""
        self._start = start

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """See Store."""
        done = self._done.get((round_, exchange))
        return None if done is None else done.upload

    def done(self) -> tuple[Done, ...]:
        """See Store."""
        return tuple(self._done[place] for place in sorted(self._done))

    def save(self, done: Done, start: RoundStart | None = None) -> None:
        """See Store."""
        if start is not None:
            self.save_start(start)
        self._done[done.round, done.exchange] = done

    def save_start(self, start: RoundStart) -> None:
        """See Store."""
        self._start, self._started = start, start.round
        self._done = {}

    def receipted(self, round_: int, exchange: int) -> None:
        """See Store."""
        done = self._done.get((round_, exchange))
        if done is not None:
            self._done[round_, exchange] = replace(done, receipted=True)

    def close(self) -> None:
        """See Store."""


_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS start (round INTEGER NOT NULL, model BLOB NOT NULL, method BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS done (
    round INTEGER NOT NULL, exchange INTEGER NOT NULL, assign BLOB NOT NULL, upload BLOB NOT NULL,
    receipted INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (round, exchange));
"""


class SqliteStore:
    """One file; every method raises StoreError where the disk will not have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_database(path, _SCHEMA)
        self._receipted: set[tuple[int, int]] = set()
        try:
            row = self._one("SELECT value FROM meta WHERE name = 'boot_epoch'")
            self.boot_epoch = (int(row[0]) if row else 0) + 1
            self._put("boot_epoch", str(self.boot_epoch).encode())
            row = self._one("SELECT value FROM meta WHERE name = 'secret'")
            self.secret = bytes(row[0]) if row else secrets.token_bytes(SECRET_BYTES)
            if not row:
                self._put("secret", self.secret)
        except BaseException:
            self._db.close()
            raise

    def welcome(self) -> bytes | None:
        """See Store."""
        row = self._one("SELECT value FROM meta WHERE name = 'welcome'")
        return bytes(row[0]) if row else None

    def save_welcome(self, frame: bytes) -> None:
        """See Store."""
        self._put("welcome", frame)

    def start(self) -> RoundStart | None:
        """See Store."""
        row = self._one("SELECT round, model, method FROM start")
        return RoundStart(*row) if row else None

    def started(self) -> int | None:
        """See Store."""
        row = self._one("SELECT round FROM start")
        return int(row[0]) if row else None

    def hold(self, start: RoundStart) -> None:
        """See Store."""

    def upload(self, round_: int, exchange: int) -> bytes | None:
        """See Store."""
        row = self._one("SELECT upload FROM done WHERE round = ? AND exchange = ?", round_, exchange)
        return bytes(row[0]) if row else None

    def done(self) -> tuple[Done, ...]:
        """See Store."""
        with guarded(self._path):
            rows = self._db.execute("SELECT * FROM done ORDER BY round, exchange").fetchall()
        return tuple(Done(r, e, a, u, bool(seen) or (r, e) in self._receipted) for r, e, a, u, seen in rows)

    def save(self, done: Done, start: RoundStart | None = None) -> None:
        """See Store."""
        with transaction(self._db, self._path):
            self._db.executemany("UPDATE done SET receipted = 1 WHERE round = ? AND exchange = ?", self._receipted)
            if start is not None:
                self._replace_start(start)
            row = (done.round, done.exchange, done.assign, done.upload, done.receipted)
            self._db.execute("INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?)", row)
        self._receipted.clear()

    def save_start(self, start: RoundStart) -> None:
        """See Store."""
        with transaction(self._db, self._path):
            self._replace_start(start)

    def receipted(self, round_: int, exchange: int) -> None:
        """See Store.  Written with the next exchange, to spare the card a sync."""
        self._receipted.add((round_, exchange))

    def close(self) -> None:
        """See Store."""
        self._db.close()

    def _replace_start(self, start: RoundStart) -> None:
        self._db.execute("DELETE FROM done")
        self._db.execute("DELETE FROM start")
        self._db.execute("INSERT INTO start VALUES (?, ?, ?)", (start.round, start.model, start.method))

    def _one(self, query: str, *values: int) -> tuple[Any, ...] | None:
        with guarded(self._path):
            row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
        return row

    def _put(self, name: str, value: bytes) -> None:
        with transaction(self._db, self._path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
