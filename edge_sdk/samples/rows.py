"""The rows of a sample store in its SQLite file.  A commit takes effect as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_sdk.at_rest.digests import with_digest
from edge_sdk.durable import Contents, FileForm, as_store_error, open_database, write

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS samples (key INTEGER PRIMARY KEY, id TEXT NOT NULL, x BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS labels (
    key INTEGER NOT NULL, born INTEGER NOT NULL, died INTEGER, y INTEGER NOT NULL, digest BLOB, PRIMARY KEY (key, born)
) WITHOUT ROWID;
"""
CONTENTS = Contents(
    "samples of this device that no other device has",
    "SampleStore(..., quarantine=True) sets the file aside and starts an empty one",
)
PAGE_BYTES = 4096
_FRAME_BYTES = PAGE_BYTES + 24
"""One page in the write-ahead log."""
_BESIDE_BYTES = 200
"""Maximum bytes of a sample's id, keys and labels, besides its values."""


@dataclass(slots=True)
class Label:
    """A sample's label, and the snapshots that hold it: those from `born` on, before `died`."""

    y: int
    born: int
    died: int | None = None
    """None while the sample has this label."""


@dataclass(slots=True)
class HeldSample:
    """A sample on the disk, without its values."""

    key: int
    """Counts the samples in the order in which they came."""
    id: str
    part: int
    """0 train, 1 validation, 2 test."""
    labels: list[Label] = field(default_factory=list)
    """Oldest first; empty while it waits for its label."""

    @property
    def label(self) -> Label | None:
        """The present label, or None before there is one, and once the sample is only kept for a snapshot."""
        return self.labels[-1] if self.labels and self.labels[-1].died is None else None

    def label_in(self, snapshot: int) -> int | None:
        """Return the label in a snapshot, or None if the sample is not part of it."""
        for label in self.labels:
            if label.born <= snapshot and (label.died is None or snapshot < label.died):
                return label.y
        return None


def room_of_sample(sample_bytes: int) -> int:
    """Return the maximum bytes that one sample takes in the file: a large one fills whole pages."""
    whole = sample_bytes + _BESIDE_BYTES
    return whole + whole // 8 if whole < PAGE_BYTES // 4 else -(-whole // (PAGE_BYTES - 4)) * PAGE_BYTES + _BESIDE_BYTES


class RowFile:
    """The rows and the settings in one file, or in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._db = open_database(path, _SCHEMA, form=FileForm(PAGE_BYTES), contents=CONTENTS)
        self.commits = 0
        """Transactions of this start; each syncs the disk once, or three times if it empties the write-ahead log."""

    def bound(self, max_bytes: int, log_bytes: int) -> None:
        """Let the log grow to `log_bytes` before it is emptied, and the file to the rest of `max_bytes`."""
        with as_store_error(self._path):
            self._db.execute(f"PRAGMA wal_autocheckpoint={max(1, log_bytes // _FRAME_BYTES)}")
            self._db.execute(f"PRAGMA max_page_count={max(1, max_bytes // PAGE_BYTES)}")

    def settings(self) -> dict[str, Any]:
        """Read the settings."""
        with as_store_error(self._path):
            return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM settings")}

    def rows(self) -> Iterator[tuple[int, str, list[Label]]]:
        """Yield the key, id and labels of every sample, in the order in which the samples came."""
        with as_store_error(self._path):
            labels: dict[int, list[Label]] = {}
            for key, born, died, y in self._db.execute("SELECT key, born, died, y FROM labels ORDER BY key, born"):
                labels.setdefault(key, []).append(Label(y, born, died))
            for key, name in self._db.execute("SELECT key, id FROM samples ORDER BY key").fetchall():
                yield key, name, labels.get(key, [])

    def values(self, first: int, last: int) -> dict[int, bytes]:
        """Read the values of the samples with these keys and those between, by key."""
        with as_store_error(self._path):
            return dict(self._db.execute("SELECT key, x FROM samples WHERE key BETWEEN ? AND ?", (first, last)))

    def commit(
        self,
        *,
        new: Mapping[int, tuple[str, bytes]],
        labels: Mapping[int, list[Label]],
        gone: Collection[int],
        settings: Mapping[str, Any],
    ) -> None:
        """Write new samples, replace the labels of others, delete samples, set settings.

        Durable on return.  Raises StoreError; then nothing has changed.  May be called again with the same arguments:
        an interrupt, such as Ctrl-C, can come between the commit and the return.
        """

        def statements() -> None:
            for key in gone:
                self._db.execute("DELETE FROM samples WHERE key = ?", (key,))
            for key in (*gone, *labels):
                self._db.execute("DELETE FROM labels WHERE key = ?", (key,))
            for key, (name, x) in new.items():
                self._db.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", (key, name, x))
            for key, each in labels.items():
                rows = [with_digest(key, label.born, label.died, label.y) for label in each]
                self._db.executemany("INSERT INTO labels VALUES (?, ?, ?, ?, ?)", rows)
            texts = [with_digest(name, json.dumps(value)) for name, value in settings.items()]
            self._db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", texts)

        write(self._db, self._path, statements)
        self.commits += 1

    def close(self) -> None:
        """Close the file."""
        self._db.close()
