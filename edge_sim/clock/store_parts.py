"""The stores of a checkpoint's devices, in parts: each checkpoint writes one file with what changed since the last one.

If several parts hold a device, the newest one counts.  A part of which at most half still counts is dropped, and its
valid half is written again.  So the parts take at most about twice the size of the stores, and all writing is at most
about twice the size of the changes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from edge_sdk.at_rest.digests import with_digest
from edge_sdk.at_rest.files import FILE_MODE
from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart, Store
from edge_sdk.durable import as_store_error, open_database, transaction
from edge_sdk.protocol.frames.frame_parts import FrameParts

STORES = ".stores"
"""The end of a part's name.  It follows the number of the writing process's first device, and the part's place."""
MOST_PARTS = 64
"""Maximum number of parts; beyond it, those with the fewest devices that count are joined."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS device (name TEXT PRIMARY KEY, welcome BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS start (
    device TEXT PRIMARY KEY, round INTEGER NOT NULL, model BLOB NOT NULL, method BLOB NOT NULL, data BLOB NOT NULL,
    digest BLOB);
CREATE TABLE IF NOT EXISTS done (
    device TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, assign BLOB NOT NULL, upload BLOB NOT NULL,
    receipted INTEGER NOT NULL, digest BLOB, PRIMARY KEY (device, round, exchange));
CREATE TABLE IF NOT EXISTS knowledge (number INTEGER PRIMARY KEY, content BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS told (
    device TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, knowledge INTEGER NOT NULL,
    at INTEGER NOT NULL, digest BLOB, PRIMARY KEY (device, round, exchange));
"""
"""knowledge: parts that Assigns of many devices share; told: the Assign to which each belongs, and its byte offset."""


class _Kept(NamedTuple):
    """Where the last state of a device lies."""

    part: str
    changes: int
    """`MemoryStore.changes` when it was written."""


class StoreParts:
    """Writes the stores of one process's devices into checkpoints."""

    def __init__(self, process: int, kept: Mapping[str, str]) -> None:
        """process: the number of its first device.  kept: in a resumed run, the part of each device by id."""
        self._process = process
        self._kept = {device: _Kept(part, 0) for device, part in kept.items()}
        self._rows = Counter(kept.values())
        """The number of devices in each part; some of them are in newer parts, too."""
        self._place = max((place_of(part) for part in self._rows), default=0)

    def save(self, folder: Path, last: Path, stores: Mapping[str, Store]) -> None:
        """Write into a folder the parts of a checkpoint.

        last: the folder of the last checkpoint, from which parts are taken over.  stores: of all devices that have had
        work, by id.  Raises StoreError, OSError; the next call then writes the same changes.
        """
        stay = {part for part in self._rows if (last / part).exists()}
        fresh = {device for device, store in stores.items() if not self._is_kept(device, store, stay)}
        counting = Counter(self._kept[device].part for device in stores.keys() - fresh)
        gone = {part for part in stay if 2 * counting[part] <= self._rows[part]}
        if len(stay) - len(gone) >= MOST_PARTS:
            gone |= {part for part, _ in sorted(counting.items(), key=lambda each: each[1])[: MOST_PARTS // 2]}
        fresh |= {device for device in stores.keys() - fresh if self._kept[device].part in gone}
        for part in stay - gone:
            _take_over(last / part, folder / part)
        self._rows = Counter({part: self._rows[part] for part in stay - gone})
        if fresh:
            self._place += 1
            part = f"{self._process}-{self._place}{STORES}"
            save_stores(folder / part, ((device, stores[device]) for device in stores if device in fresh))
            self._rows[part] = len(fresh)
            self._kept |= {device: _Kept(part, _changes(stores[device])) for device in fresh}

    def _is_kept(self, device: str, store: Store, parts: set[str]) -> bool:
        kept = self._kept.get(device)
        return kept is not None and kept.part in parts and kept.changes == _changes(store)


def place_of(part: str) -> int:
    """Return a part's place in the order in which they were written; the only one of an older checkpoint has 0."""
    return int(part.removesuffix(STORES).partition("-")[2] or 0)


def _changes(store: Store) -> int:
    return store.changes if isinstance(store, MemoryStore) else -1


def _take_over(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system has no hard links.  Parts are never changed."""
    try:
        target.hardlink_to(source)
    except OSError:
        with source.open("rb") as old, target.open("xb") as new:
            with suppress(OSError):
                target.chmod(FILE_MODE)
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())


# -- one part -----------------------------------------------------------------------------------------------------


def save_stores(path: Path, stores: Iterable[tuple[str, Store]]) -> None:
    """Write the stores of many devices into one new file, by id, in one transaction.  Raises StoreError."""
    with closing(open_database(path, _SCHEMA)) as db:
        with as_store_error(path):
            db.execute("PRAGMA journal_mode=DELETE")  # a log would write each new page twice
        shared: dict[int, tuple[int, bytes]] = {}
        with transaction(db, path):
            for device, store in stores:
                _save_store(db, device, store, shared)


def _save_store(db: sqlite3.Connection, device: str, store: Store, shared: dict[int, tuple[int, bytes]]) -> None:
    """shared: number and content of each row of `knowledge`, by identity."""
    db.execute("INSERT INTO device VALUES (?, ?, ?)", with_digest(device, bytes(store.welcome() or b"")))
    if (start := store.round_start()) is not None:
        row = with_digest(device, start.round, start.model, start.method, start.data)
        db.execute("INSERT INTO start VALUES (?, ?, ?, ?, ?, ?)", row)
    for each in store.finished():
        assign = each.assign
        if isinstance(assign, FrameParts):
            known = id(assign.middle)
            if known not in shared:
                shared[known] = len(shared), assign.middle
                db.execute("INSERT INTO knowledge VALUES (?, ?, ?)", with_digest(*shared[known]))
            told = with_digest(device, each.round, each.exchange, shared[known][0], len(assign.head))
            db.execute("INSERT INTO told VALUES (?, ?, ?, ?, ?, ?)", told)
            assign = assign.head + assign.tail
        row = with_digest(device, each.round, each.exchange, bytes(assign), each.upload, int(each.receipted))
        db.execute("INSERT INTO done VALUES (?, ?, ?, ?, ?, ?, ?)", row)


class KeptStores(Mapping[str, Store]):
    """The stores of a checkpoint by device id, each read when it is asked for."""

    def __init__(self, parts: Iterable[Path]) -> None:
        """Check all parts.  Raises Damaged, StoreError."""
        self.part_of: dict[str, str] = {}
        """The name of the part with each device's last state."""
        self._files: dict[str, sqlite3.Connection] = {}
        self._knowledge: dict[tuple[str, int], bytes] = {}
        for path in sorted(parts, key=lambda path: place_of(path.name)):
            with closing(open_database(path, _SCHEMA)) as db, as_store_error(path):
                self.part_of |= {str(device): path.name for (device,) in db.execute("SELECT name FROM device")}
                db.execute("PRAGMA journal_mode=DELETE")
            self._files[path.name] = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def __getitem__(self, device: str) -> MemoryStore:
        part = self.part_of[device]
        db = self._files[part]
        (welcome,) = db.execute("SELECT welcome FROM device WHERE name = ?", (device,)).fetchone()
        start = db.execute("SELECT round, model, method, data FROM start WHERE device = ?", (device,)).fetchone()
        return in_memory(welcome or None, RoundStart(*start) if start else None, self._finished(db, part, device))

    def _finished(self, db: sqlite3.Connection, part: str, device: str) -> Iterator[FinishedExchange]:
        rows = db.execute(
            "SELECT done.round, done.exchange, assign, upload, receipted, knowledge, at FROM done LEFT JOIN told "
            "USING (device, round, exchange) WHERE device = ? ORDER BY 1, 2",
            (device,),
        )
        for round_, exchange, own, upload, receipted, number, at in rows.fetchall():
            whole = number is None
            assign = own if whole else FrameParts(own[:at], self._shared(db, part, number), own[at:])
            yield FinishedExchange(round_, exchange, assign, upload, bool(receipted))

    def _shared(self, db: sqlite3.Connection, part: str, number: int) -> bytes:
        if (part, number) not in self._knowledge:
            (content,) = db.execute("SELECT content FROM knowledge WHERE number = ?", (number,)).fetchone()
            self._knowledge[part, number] = content
        return self._knowledge[part, number]

    def __iter__(self) -> Iterator[str]:
        return iter(self.part_of)

    def __len__(self) -> int:
        return len(self.part_of)


def in_memory(welcome: bytes | None, start: RoundStart | None, finished: Iterable[FinishedExchange]) -> MemoryStore:
    """Return a store with these contents, which counts as unchanged."""
    store = MemoryStore()
    if welcome is not None:
        store.save_welcome(welcome)
    if start is not None:
        store.save_start(start)
    for done in finished:
        store.save(done)
    store.changes = 0
    return store
