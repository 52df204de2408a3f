"""The coordinator's durable state: accepted uploads, closed exchanges, and the checkpoint of the last round.

An upload counts once it is a row here, and its receipt is sent only after that.  After a crash the round is recomputed
from the checkpoint at its start and these rows, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from edge_sdk.at_rest.digests import checked_row, with_digest
from edge_sdk.at_rest.files import create_private
from edge_sdk.durable import (
    Contents,
    FileForm,
    WatchedFile,
    as_store_error,
    bound_log,
    check_application_id,
    check_whole,
    file_form,
    leave_to_parent,
    open_database,
    write,
)
from edge_sdk.errors import Damaged, RemoteProtocolError, StoreError
from edge_sdk.protocol.exchange_id import ExchangeId

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS devices (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, hello BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS uploads (
    round INTEGER NOT NULL, exchange INTEGER NOT NULL, device TEXT NOT NULL, frame BLOB NOT NULL, digest BLOB,
    PRIMARY KEY (round, exchange, device));
CREATE TABLE IF NOT EXISTS closed (
    round INTEGER NOT NULL, exchange INTEGER NOT NULL, contributors TEXT NOT NULL, digest BLOB,
    PRIMARY KEY (round, exchange));
CREATE TABLE IF NOT EXISTS slots (device TEXT PRIMARY KEY, round INTEGER NOT NULL, frame BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS checkpoint (round INTEGER NOT NULL, state BLOB NOT NULL, record TEXT NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS history (round INTEGER PRIMARY KEY, entry TEXT NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS periods (
    kind TEXT NOT NULL, number INTEGER NOT NULL, entry TEXT NOT NULL, digest BLOB, PRIMARY KEY (kind, number));
"""

LEDGER = Path("checkpoint") / "ledger.db"
"""Where the ledger lies in a run directory."""
CONTENTS = Contents(
    "this run: its state and its uploads since the last round; devices keep their models",
    "with --resume --quarantine it is set aside and the run restarts from the beginning",
)
_INSERT_UPLOAD = "INSERT OR IGNORE INTO uploads VALUES (?, ?, ?, ?, ?)"
_FILL_SLOT = """INSERT OR REPLACE INTO slots SELECT device, round, frame, digest(device, round, frame) FROM uploads
WHERE round = ? AND exchange = 0 AND device = ?"""
_FORM = FileForm(8192, shrinks=True)
"""Page size of a new file, chosen by measurement.  Per byte of a 40 kB upload in groups of ten (alone), it writes 1.1
(2.0) bytes; 16 kB pages write 1.2 (2.8), and 4 kB pages 1.1 (1.6) but take a fifth longer."""
_LOG_BYTES = 128 * 1024 * 1024
"""The log is cut back to this size: a restart reads all of it into memory."""


@dataclass(frozen=True, slots=True)
class Row:
    """One upload in the frame in which it arrived."""

    place: ExchangeId
    device: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class Slots:
    """How a checkpoint changes the slots: uploads of the round that ends fill some, and old slots are deleted."""

    filled: tuple[str, ...] = ()
    """Devices whose upload of that round's first exchange is stored in their slot."""
    oldest: int = 0
    """Slots filled before this round are deleted."""
    dropped: tuple[str, ...] = ()
    """Devices whose slots are deleted, because their newest upload does not count."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """How a checkpoint changes the history of rounds without an end."""

    written: Mapping[tuple[str, int], Mapping[str, Any]]
    """Notes of hours and days, by kind and number; they replace earlier ones."""
    oldest: Mapping[str, int]
    """Periods of a kind before this number are deleted."""
    first_round: int = 0
    """Notes of rounds before this one are deleted."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of the coordinator at the start of a round."""

    round: int
    state: bytes
    record: dict[str, Any]
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The notes of each round, by number."""
    periods: tuple[tuple[str, int, dict[str, Any]], ...] = ()
    """The notes of hours and days: kind, number, notes."""


def _as_json(record: str | bytes) -> str:
    """Return a record as the JSON that a file holds; one of a ledger in memory is packed."""
    return json.dumps(msgpack.unpackb(record, strict_map_key=False)) if isinstance(record, bytes) else record


class Ledger:
    """One SQLite file, or memory for a simulation.  Every method raises StoreError if the disk refuses."""

    def __init__(self, path: Path | None, contents: Path | None = None) -> None:
        """Open or create the file, or use memory if path is None.  contents: start from this file of `copy_to`."""
        self._path = path
        kept = contents or path
        self._form = (file_form(kept) if kept is not None else None) or _FORM
        self._db = self._opened()
        self._file = None if path is None else WatchedFile(path, self._opened)
        self._closing: dict[ExchangeId, str] = {}
        """Contributors, as JSON, of closed exchanges that the next commit writes."""
        self._numbers: dict[str, int] = {}
        """The number of each device in the file."""
        self._taken: set[int] = set()
        self._next = 0
        """The number after all taken ones."""
        try:
            if contents is not None:
                self._fill(contents)
            rows = self._rows("SELECT round, exchange, device FROM uploads")
            self._known = {(ExchangeId(round_, exchange), device) for round_, exchange, device in rows}
            self._frames = self._held_frames()
            for device, number in self._rows("SELECT id, number FROM devices"):
                self._number(device, int(number))
            self.epoch = int(self._get("epoch") or b"0") + 1
            self._write(lambda: self._put(epoch=str(self.epoch).encode()))
        except BaseException:
            self._db.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        found = open_database(self._path, _SCHEMA, form=self._form, contents=CONTENTS)
        if self._path is None:
            return found
        try:
            with as_store_error(self._path):
                found.execute("PRAGMA secure_delete=FAST")  # Debian's SQLite zeroes deleted rows
        except StoreError:
            found.close()
            raise
        leave_to_parent(self, found)
        return found

    def _write(self, statements: Callable[[], object]) -> None:
        """Run statements in one transaction, after checking that the file still exists.

        A deleted file is first written again and reported as StoreError, after which the caller tries again.
        """
        if self._file is not None:
            before, self._db = self._db, self._file.mended(self._db)
            if self._db is not before:
                raise StoreError(f"{self._path}: was deleted while the coordinator runs, and is written again")

        def all_of_it() -> None:
            statements()
            if self._path is not None:
                bound_log(self._db, self._form.page_bytes, _LOG_BYTES)

        write(self._db, self._path, all_of_it)

    def _fill(self, contents: Path) -> None:
        with (
            as_store_error(contents, CONTENTS),
            closing(sqlite3.connect(f"{contents.absolute().as_uri()}?mode=ro", uri=True)) as source,
        ):
            check_application_id(source, contents)
            source.backup(self._db)
            check_whole(self._db, _SCHEMA, contents)

    def _held_frames(self) -> dict[tuple[ExchangeId, str], bytes]:
        """The uploads of a ledger in memory, kept outside SQLite to save two copies of each."""
        if self._path is not None:
            return {}
        rows = self._rows("SELECT round, exchange, device, frame FROM uploads")
        self._db.execute("DELETE FROM uploads")
        return {(ExchangeId(round_, exchange), device): bytes(frame) for round_, exchange, device, frame in rows}

    def bind(self, spec: bytes) -> bool:
        """Whether this ledger belongs to the federation with this spec; a new one is bound to it."""
        known = self._get("spec")
        if known is None:
            salt = b"" if self._path is None else os.urandom(16)  # a simulation repeats bit for bit
            run = hashlib.sha256(salt + spec).digest()[:16]
            self._write(lambda: self._put(spec=spec, run=run))
            return True
        return known == spec

    @property
    def spec(self) -> bytes:
        """The spec that this ledger is bound to; empty before `bind`."""
        return self._get("spec") or b""

    def begin_generation(self, spec: bytes, state: bytes | None) -> None:
        """Bind this ledger to another spec, under a new run id, so that devices take part as in a new run.

        Devices and history stay; the uploads of the open round are deleted, and its exchanges open again.  state: the
        method's first state, which replaces the stored one and deletes the slots.  None keeps both.
        """
        run = os.urandom(16)

        def statements() -> None:
            self._put(spec=spec, run=run)
            self._db.execute("DELETE FROM uploads")
            self._db.execute("DELETE FROM closed")
            if state is not None:
                self._db.execute("DELETE FROM slots")
                for round_, record in self._db.execute("SELECT round, record FROM checkpoint").fetchall():
                    row = with_digest(round_, state, record)
                    self._db.execute("DELETE FROM checkpoint")
                    self._db.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?)", row)

        self._write(statements)
        self._closing, self._known, self._frames = {}, set(), {}

    @property
    def run(self) -> bytes:
        """The id of this run, 16 bytes; empty before `bind`."""
        return self._get("run") or b""

    @property
    def unique_run(self) -> bytes | None:
        """The id of this run if it is unique, or None in a simulation, whose repeated runs share one."""
        repeated = hashlib.sha256(self._get("spec") or b"").digest()[:16]
        return None if self.run in (b"", repeated) else self.run

    def enrol(self, device: str, number: int | None, hello: bytes) -> int:
        """Store a device; returns its earlier number, else the given one, else (if taken or None) the next free one."""
        if number is None or number in self._taken:
            number = self._next
        number = self._numbers.get(device, number)
        row = with_digest(device, number, hello)
        insert = "INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)"
        if self._path is None:
            self._db.execute(insert, row)  # one statement in memory needs no transaction
        else:
            self._write(lambda: self._db.execute(insert, row))
        self._number(device, number)
        return number

    def number_of(self, device: str) -> int | None:
        """The number of a stored device, or None."""
        return self._numbers.get(device)

    def _number(self, device: str, number: int) -> None:
        self._numbers[device] = number
        self._taken.add(number)
        self._next = max(self._next, number + 1)

    def forget(self, device: str) -> None:
        """Delete a device and free its number.  Its uploads and slot must be deleted already."""
        self._write(lambda: self._db.execute("DELETE FROM devices WHERE id = ?", (device,)))
        self._taken.discard(self._numbers.pop(device, -1))

    def orders(self) -> dict[str, Any]:
        """The orders last stored by `keep_orders`, or empty."""
        found: dict[str, Any] = json.loads(self._get("orders") or b"{}")
        return found

    def keep_orders(self, orders: dict[str, Any]) -> None:
        """Store the orders of operators, durably."""
        self._write(lambda: self._put(orders=json.dumps(orders).encode()))

    def keep_version(self, version: int, weights: Mapping[str, bytes], oldest: int) -> None:
        """Store the weights that a version sent to devices, by role, and delete those before the oldest version."""

        def statements() -> None:
            old = [name for (name,) in self._rows("SELECT name FROM meta WHERE name LIKE 'version %'")]
            gone = [(name,) for name in old if int(name.split()[1]) < oldest]
            self._db.executemany("DELETE FROM meta WHERE name = ?", gone)
            self._put(**{f"version {version} {role}": kept for role, kept in weights.items()})

        self._write(statements)

    def versions(self, version: int) -> dict[str, bytes]:
        """The weights of a version by role, as `keep_version` stored them, or empty."""
        rows = self._whole("SELECT * FROM meta WHERE name LIKE ?", f"version {version} %")
        return {name.split()[2]: bytes(kept) for name, kept in rows}

    def enrolled(self) -> dict[str, tuple[int, bytes]]:
        """Number and last Hello frame by device."""
        return {device: (number, hello) for device, number, hello in self._whole("SELECT * FROM devices")}

    def has(self, place: ExchangeId, device: str) -> bool:
        """Whether an upload of this device for this exchange is durable."""
        return (place, device) in self._known

    def commit(self, rows: Iterable[Row]) -> None:
        """Make a group of uploads durable with one sync; the first one of a (place, device) wins."""
        fresh = [row for row in rows if not self.has(row.place, row.device)]
        on_disk = fresh if self._path is not None else []
        if on_disk or self._closing:
            closed = [with_digest(place.round, place.exchange, by) for place, by in self._closing.items()]
            uploads = [with_digest(row.place.round, row.place.exchange, row.device, row.frame) for row in on_disk]

            def statements() -> None:
                self._db.executemany("INSERT OR REPLACE INTO closed VALUES (?, ?, ?, ?)", closed)
                self._db.executemany(_INSERT_UPLOAD, uploads)

            self._write(statements)
        if self._path is None:
            for row in fresh:
                self._frames.setdefault((row.place, row.device), row.frame)
        self._closing = {}
        self._known.update((row.place, row.device) for row in fresh)

    def close_exchange(self, place: ExchangeId, contributors: tuple[str, ...], *, now: bool) -> None:
        """Record the contributors of an exchange; now: write them before any device learns the result.

        If all invited devices have answered, it may wait for the next commit: the rows of uploads then show the same.
        """
        self._closing[place] = json.dumps(contributors)
        if now:
            self.commit(())

    def closed(self, round_: int) -> dict[int, tuple[str, ...]]:
        """Contributors by exchange, for the closed exchanges of a round."""
        rows = self._whole("SELECT * FROM closed WHERE round = ?", round_)
        return {exchange: tuple(json.loads(text)) for _, exchange, text in rows}

    def contributors(self, place: ExchangeId) -> tuple[str, ...]:
        """The contributors of a closed exchange, even if they are not written yet."""
        if place in self._closing:
            return tuple(json.loads(self._closing[place]))
        return self.closed(place.round).get(place.exchange, ())

    def slot(self, device: str) -> bytes | None:
        """The frame in a device's slot."""
        rows = self._whole("SELECT * FROM slots WHERE device = ?", device)
        return rows[0][2] if rows else None

    def slots_before(self, round_: int) -> tuple[str, ...]:
        """The devices whose slots were filled in earlier rounds."""
        rows = self._rows("SELECT device FROM slots WHERE round < ? ORDER BY device", round_)
        return tuple(device for (device,) in rows)

    def uploads(self, place: ExchangeId) -> dict[str, bytes]:
        """Frames by device for one exchange."""
        if self._path is None:
            return {device: frame for (there, device), frame in self._frames.items() if there == place}
        rows = self._whole("SELECT * FROM uploads WHERE round = ? AND exchange = ?", place.round, place.exchange)
        return {device: frame for _, _, device, frame in rows}

    def upload(self, place: ExchangeId, device: str) -> bytes:
        """The frame of one device for one exchange, which must exist."""
        if self._path is None:
            return self._frames[place, device]
        query = "SELECT * FROM uploads WHERE round = ? AND exchange = ? AND device = ?"
        frame: bytes = self._whole(query, place.round, place.exchange, device)[0][3]
        return frame

    def checkpoint(
        self,
        round_: int,
        state: bytes,
        record: dict[str, Any],
        slots: Slots | None = None,
        history: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        rolled: Rolled | None = None,
    ) -> None:
        """Begin a round: delete the rows of earlier rounds, except uploads that go into slots.

        history: notes of some rounds, by number; they replace earlier notes of the same rounds only, so that a
        checkpoint does not grow with the number of rounds.
        """
        slots, noted = slots or Slots(), [with_digest(at, json.dumps(entry)) for at, entry in (history or {}).items()]
        row = with_digest(round_, state, self._packed(record))

        def statements() -> None:
            self._fill_slots(round_ - 1, slots.filled)
            self._db.execute("DELETE FROM slots WHERE round < ?", (slots.oldest,))
            self._db.executemany("DELETE FROM slots WHERE device = ?", [(device,) for device in slots.dropped])
            self._db.execute("DELETE FROM checkpoint")
            self._db.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?)", row)
            self._db.executemany("INSERT OR REPLACE INTO history VALUES (?, ?, ?)", noted)
            if rolled is not None:
                self._roll_up(rolled)
            self._db.execute("DELETE FROM uploads WHERE round < ?", (round_,))
            self._db.execute("DELETE FROM closed WHERE round < ?", (round_,))

        self._write(statements)
        self._closing = {place: by for place, by in self._closing.items() if place.round >= round_}
        self._known = {(place, device) for place, device in self._known if place.round >= round_}
        self._frames = {key: frame for key, frame in self._frames.items() if key[0].round >= round_}

    def _packed(self, record: dict[str, Any]) -> str | bytes:
        """Return a record as JSON, or in memory in a form that takes a fraction of the time for many devices."""
        if self._path is None:
            with suppress(OverflowError):  # of a count beyond 64 bits
                return bytes(msgpack.packb(record))
        return json.dumps(record)

    def _roll_up(self, rolled: Rolled) -> None:
        rows = [with_digest(kind, at, json.dumps(entry)) for (kind, at), entry in rolled.written.items()]
        self._db.executemany("INSERT OR REPLACE INTO periods VALUES (?, ?, ?, ?)", rows)
        self._db.executemany("DELETE FROM periods WHERE kind = ? AND number < ?", [*rolled.oldest.items()])
        self._db.execute("DELETE FROM history WHERE round < ?", (rolled.first_round,))

    def _fill_slots(self, round_: int, devices: Sequence[str]) -> None:
        if self._path is not None:
            self._db.executemany(_FILL_SLOT, [(round_, device) for device in devices])
            return
        rows = [with_digest(device, round_, self._frames[ExchangeId(round_, 0), device]) for device in devices]
        self._db.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?)", rows)

    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint at the start of the last round, or None before the first."""
        rows = self._whole("SELECT * FROM checkpoint")
        if not rows:
            return None
        (round_, state, record), noted = rows[0], self._whole("SELECT * FROM history ORDER BY round")
        periods = tuple((kind, at, json.loads(entry)) for kind, at, entry in self._whole("SELECT * FROM periods"))
        history = {at: json.loads(entry) for at, entry in noted}
        return Checkpoint(round_, state, json.loads(_as_json(record)), history, periods)

    def copy_to(self, path: Path) -> None:
        """Write everything into a file, so that a simulation in memory can be saved."""
        self.commit(())  # write the closed exchanges that wait for the next commit
        with as_store_error(path):
            path.unlink(missing_ok=True)
            create_private(path)
            with closing(sqlite3.connect(path)) as target:
                self._db.backup(target)
                for round_, state, record in target.execute("SELECT round, state, record FROM checkpoint").fetchall():
                    row = with_digest(round_, state, _as_json(record))
                    target.execute("UPDATE checkpoint SET round = ?, state = ?, record = ?, digest = ?", row)
                found = self._frames.items()
                rows = [with_digest(at.round, at.exchange, device, frame) for (at, device), frame in found]
                target.executemany(_INSERT_UPLOAD, rows)
                target.commit()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn decoding errors of this ledger's contents into Damaged: old rows have no digest to check."""
        try:
            yield
        except (RemoteProtocolError, KeyError, TypeError, ValueError, AttributeError) as error:
            found = f"a row cannot be read: {type(error).__name__}"
            raise Damaged(self._path, found, CONTENTS.lost, CONTENTS.remedy) from error

    def free_bytes(self) -> int | None:
        """Free bytes on the ledger's disk, or in memory, or None if the system does not report them."""
        try:
            if self._path is not None:
                return shutil.disk_usage(self._path.parent).free
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # some systems do not have these counts
            return None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _get(self, name: str) -> bytes | None:
        rows = self._whole("SELECT * FROM meta WHERE name = ?", name)
        return bytes(rows[0][1]) if rows else None

    def _whole(self, query: str, *values: object) -> list[Any]:
        """Return rows without their digests, after checking these.  Raises Damaged."""
        with as_store_error(self._path, CONTENTS):
            return [checked_row(self._path, row) for row in self._rows(query, *values)]

    def _rows(self, query: str, *values: object) -> list[Any]:
        with as_store_error(self._path):
            return self._db.execute(query, values).fetchall()

    def _put(self, **values: bytes) -> None:
        rows = [with_digest(name, value) for name, value in values.items()]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", rows)


def bound_spec(path: Path) -> bytes | None:
    """Return the spec that the ledger in a file is bound to, or None if it cannot be read.

    Takes no lock, writes nothing and ignores the log: the spec never changes once it is in the file.
    """
    with (
        suppress(sqlite3.DatabaseError),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as found,
    ):
        row = found.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
        return None if row is None else bytes(row[0])
    return None
