"""The rows of a sample store in its SQLite file, and the shape and type that all its samples have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.at_rest.digests import with_digest
from edge_sdk.class_names import listed
from edge_sdk.data import Raw, is_whole
from edge_sdk.durable import Contents, FileForm, as_store_error, open_database, write
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import PictureLayout, channels_last, given_array, raw_values
from edge_sdk.sample_kind import OF_LENGTHS, SampleKind, as_held, lengthened

KINDS = ("uint8", "float32")


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of one sample, (d,), (h, w) or (h, w, c), and the name of its dtype.

    Raises UsageError for forms that a model's `Preprocess` does not take.
    """

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 3 or min(self.shape) < 1:
            raise UsageError(f"a sample of shape {self.shape}: expected (d,), (h, w) or (h, w, c), none of them 0")
        if self.dtype not in KINDS:
            raise UsageError(f"samples of dtype {self.dtype}: expected {' or '.join(KINDS)}")

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def array(self, values: bytes) -> Raw:
        """Return a sample's values as an array of this form."""
        found: Raw = np.frombuffer(values, self.dtype).reshape(self.shape)
        return found


def checked_sample(
    x: Any, layout: PictureLayout | None, known: Form | None, kind: SampleKind | None
) -> tuple[Raw, str]:
    """Return one sample as uint8 or float32, a contiguous copy with channels last, and a line about its layout.

    known: the form of the samples so far.  A sample of that shape is taken unchanged, unless a layout is given, and
    ragged series and texts are padded to its length.
    kind: the declared one.

    The line is empty if the layout was clear.  Raises UsageError for a sample that is neither, and for NaN.
    """
    found = given_array(x, "a sample")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UsageError("a sample with NaN or Inf: leave it out, or repair the sensor's reading first")
    if kind is not None:
        if known is not None and kind.name in OF_LENGTHS and found.ndim and len(found) < known.shape[0]:
            found = kind.given(found[None], "a sample", [len(found)])[0]
        values, line = as_held(found[None], kind, layout, "a sample")
        if known is not None and kind.name in OF_LENGTHS and values.shape[2:] == known.shape[1:]:
            values = lengthened(values, known.shape[0], "the store", kind.parts)
        return np.array(values[0], order="C"), line
    values = raw_values(found[None], "a sample")
    line = ""
    if layout is not None or known is None or found.shape != known.shape:
        values, line = channels_last(values, layout, "a sample")
    return np.array(values[0], order="C"), line


def class_id(y: Any, classes: int, names: Sequence[str] = ()) -> int:
    """Return a label, a class's number or name, as an int.  Raises UsageError for any other label."""
    if getattr(y, "ndim", None) == 0 and hasattr(y, "item"):  # an array or a tensor with one number or name
        y = y.item()
    if isinstance(y, str) and names:
        if y not in names:
            raise UsageError(f"class {y!r}: no such class; there are {listed(names)}")
        return names.index(y)
    if not is_whole(y) or not 0 <= y < classes:
        raise UsageError(f"class {y!r}: the federation has classes 0..{classes - 1}, given as whole numbers")
    return int(y)


def sample_id(values: bytes) -> str:
    """Return the id of a sample, a hash of its values: equal samples are one sample."""
    return hashlib.blake2b(values, digest_size=16).hexdigest()


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
