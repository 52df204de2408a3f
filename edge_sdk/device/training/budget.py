"""The privacy budget of a device's data: a ledger of releases, each written before any byte of it leaves.

A release is stored with its noised bytes.  A later request for the same data, after a crash or in another federation,
gets the same bytes: reuse costs nothing, and old data never gets fresh noise.  The file is open only while it is read
or written, so that all federations of a device can share it, in one process or in several.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.at_rest.digests import checked_row, with_digest
from edge_sdk.at_rest.files import make_private_folder
from edge_sdk.durable import Contents, as_store_error, file_lock, is_emptied, open_database, transaction
from edge_sdk.errors import InUse, Refused, UsageError
from edge_sdk.privacy.noise import composed, epsilon
from edge_sdk.privacy.release import Guarantee

_SCHEMA = """
CREATE TABLE IF NOT EXISTS budget (epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    data BLOB PRIMARY KEY, mu REAL NOT NULL, classes INTEGER NOT NULL, sums BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS life (epoch INTEGER NOT NULL, inode INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS marks (number INTEGER PRIMARY KEY, mark BLOB NOT NULL);
"""
NAME = "privacy.db"
"""The file of the ledger in a device's state folder, which all federations of the device share."""
_ROUNDING = 1e-9
"""The share by which the sum of squares may exceed the budget, which allows for floating-point rounding."""
_MARK_BYTES = 16
_WAIT_S = 60.0
"""Maximum wait for other federations, each of which uses the file for a moment."""
_HELD = "another process is using this budget ledger: try again in a moment"
_PUT_BACK = "put the newest ledger back in its place; without it the spent budget is unknown, so stop releasing"
_CONTENTS = Contents(
    "what was released of this device's data", f"{_PUT_BACK}: an empty ledger would count nothing as spent"
)
_SEEN_SCHEMA = "CREATE TABLE IF NOT EXISTS seen (mark BLOB NOT NULL, inode INTEGER NOT NULL, digest BLOB);"
_SEEN_CONTENTS = Contents(
    "which budget ledger is this device's newest",
    "if privacy.db beside it is the newest ledger, move this file away; if not, put the newest back first",
)


class BudgetLedger:
    """One SQLite file, which belongs to the data, not to a federation; methods raise StoreError if the disk fails.

    They raise UsageError for a ledger that is a copy, another one, or older than the device has seen.
    """

    def __init__(self, path: Path | None, budget: Guarantee) -> None:
        """path: None keeps it in memory.  Raises UsageError if the file was begun with another budget."""
        self._path, self.budget = path, budget
        self._witness = LedgerWitness(path.with_suffix(".seen")) if path is not None else None
        self._newest = b""
        """The newest mark that this process has seen."""
        with self._opened() as db, as_store_error(path, _CONTENTS):
            known = db.execute("SELECT epsilon, delta FROM budget").fetchone()
            if known is None:
                with transaction(db, path):
                    db.execute("INSERT INTO budget VALUES (?, ?)", (budget.epsilon, budget.delta))
            elif known != (budget.epsilon, budget.delta):
                raise UsageError(
                    f"{path}: the budget of this data is epsilon = {known[0]:g} at delta = {known[1]:g}, not "
                    f"{budget.epsilon:g} at {budget.delta:g}: releases under it cannot be recalled"
                )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Wait for the ledger, check that it is the device's newest, and open it."""
        if self._path is None:
            yield self._memory
            return
        with self._turn(self._path), closing(self._checked(self._path)) as db:
            yield db

    @contextmanager
    def _turn(self, path: Path) -> Iterator[None]:
        """Lock out other federations: opening a database reads its log, which another process may be deleting."""
        try:
            with as_store_error(path):
                make_private_folder(path.parent)
            lock = file_lock(path.with_suffix(".lock"), _WAIT_S)
        except InUse:
            raise InUse(f"{path}: {_HELD}") from None
        with closing(lock):
            yield

    @cached_property
    def _memory(self) -> sqlite3.Connection:
        return open_database(None, _SCHEMA)

    def _checked(self, path: Path) -> sqlite3.Connection:
        seen = None if self._witness is None else self._witness.newest()
        known = self._newest or (b"" if seen is None else seen[0])
        if known and (not path.exists() or is_emptied(path)):
            raise UsageError(f"{path}: this device's budget ledger is missing or empty: {_PUT_BACK}")
        db = open_database(path, _SCHEMA, contents=_CONTENTS)
        try:
            with as_store_error(path, _CONTENTS):
                self._check_marks(db, path, known)
                self._check_place(db, path, seen)
                self._see(self._newest_mark(db))
        except BaseException:
            db.close()
            raise
        return db

    def _check_marks(self, db: sqlite3.Connection, path: Path, known: bytes) -> None:
        """Raise UsageError unless the ledger holds the newest mark that the device has seen; begin one without any."""
        if known and db.execute("SELECT 1 FROM marks WHERE mark = ?", (known,)).fetchone() is None:
            raise UsageError(f"{path}: this is an older budget ledger, or another device's: {_PUT_BACK}")
        if not self._newest_mark(db):
            with transaction(db, path):
                self._add_mark(db)

    def _check_place(self, db: sqlite3.Connection, path: Path, seen: tuple[bytes, bool] | None) -> None:
        """Raise UsageError for a copy of a ledger, unless it is the newest one, put back where it was."""
        inode = path.stat().st_ino
        known = db.execute("SELECT inode FROM life").fetchone()
        if known is not None and known[0] == inode:
            return
        if known is not None and seen != (self._newest_mark(db), True):
            raise UsageError(
                f"{path}: this budget ledger is a copy, which lacks later releases of the original: put it back "
                "where it was, or count the budget of this data as spent"
            )
        with transaction(db, path):
            db.execute("DELETE FROM life")
            db.execute("INSERT INTO life VALUES (0, ?)", (inode,))

    def _newest_mark(self, db: sqlite3.Connection) -> bytes:
        row = db.execute("SELECT mark FROM marks ORDER BY number DESC LIMIT 1").fetchone()
        return b"" if row is None else bytes(row[0])

    def _add_mark(self, db: sqlite3.Connection) -> None:
        """Draw a mark, within a transaction."""
        db.execute("INSERT INTO marks (mark) VALUES (?)", (secrets.token_bytes(_MARK_BYTES),))

    def _see(self, mark: bytes) -> None:
        """Remember the newest mark; durable on return."""
        if mark and mark != self._newest and self._witness is not None:
            self._witness.remember(mark)
        self._newest = mark

    def refusal(self, method: str, cost: Guarantee | None) -> Refused | None:
        """Return why the budget forbids a method, or None if it allows it.

        cost: the guarantee of one release of this method, or None without a guarantee.
        """
        if cost is None:
            why = f"{method} gives no formal guarantee here"
        elif cost.mu > self.budget.mu:
            why = f"a release costs epsilon = {cost.epsilon:g} at delta = {cost.delta:g}"
        else:
            return None
        return Refused(
            "privacy",
            f"this device's privacy budget is epsilon = {self.budget.epsilon:g} at delta = {self.budget.delta:g}, "
            f"and {why}",
            "join a federation of dp_prototypes with a smaller method.epsilon",
        )

    @property
    def spent(self) -> float:
        """The mu of all releases together."""
        with self._opened() as db:
            return self._spent(db)

    def _spent(self, db: sqlite3.Connection) -> float:
        with as_store_error(self._path, _CONTENTS):
            return composed(mu for (mu,) in db.execute("SELECT mu FROM releases").fetchall())

    @property
    def spent_epsilon(self) -> float:
        """The epsilon of all releases together at the budget's delta, or 0 before the first."""
        return self._epsilon(self.spent)

    def _epsilon(self, spent: float) -> float:
        return epsilon(self.budget.delta, spent) if spent else 0.0

    @property
    def releases(self) -> int:
        """The number of versions of the data that were released."""
        with self._opened() as db, as_store_error(self._path, _CONTENTS):
            (count,) = db.execute("SELECT COUNT(*) FROM releases").fetchone()
        return int(count)

    def released(self, data: bytes, cost: Guarantee, make: Callable[[], Doubles]) -> Doubles:
        """Return the noised sums of a version of the data, stored ones or new ones, durable on return.

        data: names the version, such as a digest of its samples.  make: draws the noised sums, (k, m).  Raises
        UsageError, and draws nothing, if the budget does not suffice.
        """
        with self._opened() as db:
            found = self._row(db, data)
            if found is None:
                self._check_budget(db, cost)
        if found is not None:
            return found
        sums = np.ascontiguousarray(make(), "<f8")  # outside the lock, because it may take long
        with self._opened() as db:
            found = self._row(db, data)
            if found is not None:
                return found
            self._check_budget(db, cost)
            with transaction(db, self._path):
                db.execute("INSERT INTO releases VALUES (?, ?, ?, ?)", (data, cost.mu, len(sums), sums.tobytes()))
                self._add_mark(db)
            with as_store_error(self._path, _CONTENTS):
                self._see(self._newest_mark(db))
        return sums

    def _check_budget(self, db: sqlite3.Connection, cost: Guarantee) -> None:
        spent = self._spent(db)
        limit, needed = self.budget.mu, composed([spent, cost.mu])
        if needed > limit * (1 + _ROUNDING):
            raise UsageError(
                f"privacy: this release would take epsilon from {self._epsilon(spent):.3g} to "
                f"{epsilon(self.budget.delta, needed):.3g}, and the budget of this data is {self.budget.epsilon:g} at "
                f"delta = {self.budget.delta:g}: continue with the earlier release, or keep the new samples back"
            )

    def before(self, data: bytes) -> Doubles | None:
        """Return the stored sums of a version of the data, or None if it was never released."""
        with self._opened() as db:
            return self._row(db, data)

    def check_holds(self, data: bytes) -> None:
        """Raise UsageError if the file lacks a release that the device's state remembers."""
        if data and self._path is not None and self.before(data) is None:
            raise UsageError(f"{self._path}: this budget ledger lacks what this device has released: {_PUT_BACK}")

    def _row(self, db: sqlite3.Connection, data: bytes) -> Doubles | None:
        with as_store_error(self._path, _CONTENTS):
            found = db.execute("SELECT classes, sums FROM releases WHERE data = ?", (data,)).fetchone()
        return None if found is None else np.frombuffer(found[1], "<f8").reshape(found[0], -1)

    def close(self) -> None:
        """Do nothing: the file is open only while it is used."""


class LedgerWitness:
    """A small SQLite file that remembers the ledger's newest mark, to detect an older or another ledger.

    A ledger draws a random mark when it begins, and one with every release.  The newest is stored here before the
    release leaves.  An older copy of the ledger lacks that mark, and can never draw the same one again.  The file is
    open only while it is read or written; methods raise StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self) -> tuple[bytes, bool] | None:
        """Return the newest mark, and whether this file is the original, not a copy, or None before the first mark."""
        if not self._path.is_file():
            return None
        with self._opened() as row:
            return None if row is None else (row[0], row[1] == self._path.stat().st_ino)

    def remember(self, mark: bytes) -> None:
        """Store a mark; durable on return."""
        with (
            as_store_error(self._path, _SEEN_CONTENTS),
            closing(open_database(self._path, _SEEN_SCHEMA, contents=_SEEN_CONTENTS)) as db,
            transaction(db, self._path),
        ):
            db.execute("DELETE FROM seen")
            db.execute("INSERT INTO seen VALUES (?, ?, ?)", with_digest(mark, self._path.stat().st_ino))

    @contextmanager
    def _opened(self) -> Iterator[tuple[bytes, int] | None]:
        with (
            as_store_error(self._path, _SEEN_CONTENTS),
            closing(open_database(self._path, _SEEN_SCHEMA, contents=_SEEN_CONTENTS)) as db,
        ):
            row = db.execute("SELECT * FROM seen").fetchone()
            found = None if row is None else checked_row(self._path, row)
            yield None if found is None else (found[0], found[1])
