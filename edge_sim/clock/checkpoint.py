"""Checkpoints of a simulation in memory, written often, and when Ctrl-C comes: a crash loses about half a minute."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from coordinator.ledger import Ledger
from edge_sdk.at_rest.digests import checked_json, json_with_digest, with_digest
from edge_sdk.at_rest.files import make_private_folder, replace_durably, sync_folder
from edge_sdk.at_rest.foreign import UNREADABLE, check_fields, open_foreign, read_foreign
from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart, SqliteStore, Store
from edge_sdk.durable import as_store_error, open_database, transaction
from edge_sdk.errors import Damaged, RemoteProtocolError, StoreError, UsageError

EVERY_S = 30.0
"""Real seconds between two checkpoints."""
FIRST_S = 3.0
"""Real seconds until the first checkpoint; early, so that a run killed soon after its start can also resume."""
_STATE = "world.json"
STORES = ".stores"
"""The end of the name of a file with the stores of all devices of a process that have had work."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS device (name TEXT PRIMARY KEY, welcome BLOB NOT NULL, digest BLOB);
CREATE TABLE IF NOT EXISTS start (
    device TEXT PRIMARY KEY, round INTEGER NOT NULL, model BLOB NOT NULL, method BLOB NOT NULL, data BLOB NOT NULL,
    digest BLOB);
CREATE TABLE IF NOT EXISTS done (
    device TEXT NOT NULL, round INTEGER NOT NULL, exchange INTEGER NOT NULL, assign BLOB NOT NULL, upload BLOB NOT NULL,
    receipted INTEGER NOT NULL, digest BLOB, PRIMARY KEY (device, round, exchange));
"""
LOST = "this run, which has no other copy"
REMEDY = "with --resume --quarantine the checkpoint is set aside and the run restarts from the beginning"


class Checkpoints:
    """The checkpoint in a folder; each new one replaces the last one by a rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_s = time.monotonic() - EVERY_S + FIRST_S

    @property
    def folder(self) -> Path:
        """The folder of the last checkpoint; after a power cut between two renames it still has its other name."""
        return self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last_s >= EVERY_S

    def save(self, ledger: Ledger, copy_stores: Callable[[Path], None], state: Mapping[str, Any]) -> None:
        """Copy everything to disk.

        copy_stores: writes the devices' stores into a folder.  state: plain values of the simulation.
        """
        fresh, old = self._folder.with_name("checkpoint.new"), self._folder.with_name("checkpoint.old")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            make_private_folder(fresh)
            ledger.copy_to(fresh / "ledger.db")
            replace_durably(fresh / _STATE, json_with_digest(state))
            copy_stores(fresh)
            sync_folder(fresh)
            if self._folder.exists():
                shutil.rmtree(old, ignore_errors=True)
                self._folder.replace(old)
            fresh.replace(self._folder)
            sync_folder(self._folder.parent)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise StoreError(f"{fresh}: {error}; check free space and the folder's rights") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # left over if saving failed
        self._last_s = time.monotonic()

    def load(self) -> tuple[Ledger, dict[str, Store], dict[str, Any]]:
        """Read the ledger, the devices' stores and the state of the last checkpoint.

        Raises UsageError without one, Damaged if one of its files was changed.
        """
        folder = self.folder
        if not (folder / "ledger.db").exists():
            raise UsageError(f"{self._folder.parent}: nothing to resume here; start without --resume")
        try:
            return _loaded(folder)
        except Damaged as error:
            raise Damaged(error.path, error.found, LOST, REMEDY) from error


def how_to_go_on(checkpoints: Checkpoints | None) -> str:
    """Return advice after a failed run."""
    if checkpoints is not None and checkpoints.folder.exists():
        return "continue from the last checkpoint with --resume"
    return "start again: no checkpoint exists yet"


def _loaded(folder: Path) -> tuple[Ledger, dict[str, Store], dict[str, Any]]:
    paths = [*sorted(folder.glob("*.db")), *sorted(folder.glob(f"*{STORES}"))]
    for path in paths:
        with _reading(path), open_foreign(path, sys.maxsize) as file:  # checked first: SQLite would block on a pipe
            if not file.read(1):
                raise Damaged(path, "it is empty")
    with _reading(folder / "ledger.db"):
        ledger = Ledger(None, folder / "ledger.db")
    stores: dict[str, Store] = {}
    for path in paths:
        if path.stem != "ledger":
            with _reading(path):
                stores.update(_stores_in(path))
    path, missing = folder / _STATE, ledger.enrolled().keys() - stores.keys()
    if not path.exists():
        _check_complete(folder, missing)
    with _reading(path):
        state = checked_json(path, read_foreign(path), is_old=_is_old)
        if not _is_old(state):
            raise ValueError("its values do not fit")
        check_fields(state, _VALUES)
        missing -= {str(name) for name in state.get("dormant", ())}
    _check_complete(folder, missing)
    return ledger, stores, state


def _check_complete(folder: Path, missing: AbstractSet[str]) -> None:
    """Raise UsageError if devices have no state here."""
    if missing:
        raise UsageError(
            f"{folder}: has no state of {min(missing)}: the run began over a broker, continue with one (--broker)"
        )


_VALUES: Mapping[str, Any] = {
    "now_s": float,
    "begun_s": float | None,  # None before the first exchange
    **dict.fromkeys(("hardware", "open", "resumed"), Mapping[str, Any]),
}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn decoding errors of a file into Damaged."""
    try:
        yield
    except (RemoteProtocolError, *UNREADABLE) as error:
        raise Damaged(path, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error


def _is_old(plain: Any) -> bool:
    """Return whether this is a state from before there were digests."""
    return isinstance(plain, dict) and {"now_s", "begun_s", "hardware"} <= plain.keys()


def save_stores(path: Path, stores: Iterable[tuple[str, Store]]) -> None:
    """Write the stores of many devices into one new file, by id, in one transaction.  Raises StoreError."""
    with closing(open_database(path, _SCHEMA)) as db:
        with as_store_error(path):
            db.execute("PRAGMA journal_mode=DELETE")  # a log would take each new page a second time
        with transaction(db, path):
            for device, store in stores:
                _save_store(db, device, store)


def _save_store(db: sqlite3.Connection, device: str, store: Store) -> None:
    db.execute("INSERT INTO device VALUES (?, ?, ?)", with_digest(device, bytes(store.welcome() or b"")))
    if (start := store.round_start()) is not None:
        row = with_digest(device, start.round, start.model, start.method, start.data)
        db.execute("INSERT INTO start VALUES (?, ?, ?, ?, ?, ?)", row)
    rows = (
        with_digest(device, each.round, each.exchange, bytes(each.assign), each.upload, int(each.receipted))
        for each in store.finished()
    )
    db.executemany("INSERT INTO done VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _stores_in(path: Path) -> Iterator[tuple[str, Store]]:
    """Yield each device's id and store, from a file of `save_stores`, or of the time when each device had its own."""
    if path.suffix != STORES:
        with closing(SqliteStore(path)) as disk:
            yield path.stem, _in_memory(disk.welcome(), disk.round_start(), disk.finished())
        return
    with closing(open_database(path, _SCHEMA)) as db:
        for device, welcome in db.execute("SELECT name, welcome FROM device"):
            start = db.execute("SELECT round, model, method, data FROM start WHERE device = ?", (device,)).fetchone()
            done = db.execute(
                "SELECT round, exchange, assign, upload, receipted FROM done WHERE device = ? ORDER BY 1, 2", (device,)
            )
            finished = [FinishedExchange(at, each, asked, sent, bool(seen)) for at, each, asked, sent, seen in done]
            yield str(device), _in_memory(welcome or None, RoundStart(*start) if start else None, finished)


def _in_memory(welcome: bytes | None, start: RoundStart | None, finished: Iterable[FinishedExchange]) -> MemoryStore:
    store = MemoryStore()
    if welcome is not None:
        store.save_welcome(welcome)
    if start is not None:
        store.save_start(start)
    for done in finished:
        store.save(done)
    return store


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Delay a first SIGINT until the yielded function is called, which raises it; a second one is raised at once.

    Within an event of the virtual clock the state is incomplete and no checkpoint can be written.
    Outside the main thread, where signals never arrive, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    def check() -> None:
        if came.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
