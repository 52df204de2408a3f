"""A file beside a device's budget ledger that remembers its newest mark, to detect an older or another ledger.

A ledger draws a random mark when it begins, and one with every release.  The newest is stored here before the release
leaves.  An older copy of the ledger lacks that mark, and can never draw the same one again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from edge_sdk.at_rest.digests import checked_row, with_digest
from edge_sdk.durable import Contents, as_store_error, open_database, transaction

_SCHEMA = "CREATE TABLE IF NOT EXISTS seen (mark BLOB NOT NULL, inode INTEGER NOT NULL, digest BLOB);"
_CONTENTS = Contents(
    "which budget ledger is this device's newest",
    "if privacy.db beside it is the newest ledger, move this file away; if not, put the newest back first",
)


class LedgerWitness:
    """One small SQLite file, open only while it is read or written; methods raise StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self) -> tuple[bytes, bool] | None:
        """Return the newest mark, and whether this file is the original, not a copy; None before the first mark."""
        if not self._path.is_file():
            return None
        with self._opened() as row:
            return None if row is None else (row[0], row[1] == self._path.stat().st_ino)

    def remember(self, mark: bytes) -> None:
        """Store a mark; durable on return."""
        with (
            as_store_error(self._path, _CONTENTS),
            closing(open_database(self._path, _SCHEMA, contents=_CONTENTS)) as db,
            transaction(db, self._path),
        ):
            db.execute("DELETE FROM seen")
            db.execute("INSERT INTO seen VALUES (?, ?, ?)", with_digest(mark, self._path.stat().st_ino))

    @contextmanager
    def _opened(self) -> Iterator[tuple[bytes, int] | None]:
        with (
            as_store_error(self._path, _CONTENTS),
            closing(open_database(self._path, _SCHEMA, contents=_CONTENTS)) as db,
        ):
            row = db.execute("SELECT * FROM seen").fetchone()
            found = None if row is None else checked_row(self._path, row)
            yield None if found is None else (found[0], found[1])
