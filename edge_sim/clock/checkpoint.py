"""Checkpoints of a simulation in memory, written often, and on Ctrl-C.

A crash loses about half a minute, or about ten times the duration of a checkpoint if that is more.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from coordinator.ledger import Ledger
from edge_sdk.at_rest.digests import checked_json, json_with_digest
from edge_sdk.at_rest.files import make_private_folder, replace_durably, sync_folder
from edge_sdk.at_rest.foreign import UNREADABLE, check_fields, open_foreign, read_foreign
from edge_sdk.device.store import SqliteStore, Store
from edge_sdk.errors import Damaged, RemoteProtocolError, StoreError, UsageError
from edge_sim.clock.store_parts import STORES, KeptStores, in_memory

EVERY_S = 30.0
"""Real seconds between two checkpoints, at least."""
MOST_OF_TIME = 0.1
"""Maximum share of the time for checkpoints; one each 30 s took 18 % with 100,000 devices."""
FIRST_S = 3.0
"""Real seconds until the first checkpoint; early, so that a run killed soon after its start can also resume."""
_STATE = "world.json"
_DIFFERENT, _OF = " different", " of"
"""The keys of the shorter form; no device has such an id."""
LOST = "this run, which has no other copy"
REMEDY = "with --resume --quarantine the checkpoint is set aside and the run restarts from the beginning"


class Checkpoints:
    """The checkpoint in a folder; each new one replaces the last one by a rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = time.monotonic() + FIRST_S

    @property
    def folder(self) -> Path:
        """The folder of the last checkpoint; after a power cut between two renames it still has its other name."""
        return self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() >= self._next_s

    def save(self, ledger: Ledger, copy_stores: Callable[[Path, Path], None], state: Mapping[str, Any]) -> None:
        """Copy to disk what has changed.

        copy_stores: writes the devices' stores into a folder, and takes over those in the folder of the last
        checkpoint that are unchanged.  state: plain values of the simulation.
        """
        begun_s = time.monotonic()
        fresh, old = self._folder.with_name("checkpoint.new"), self._folder.with_name("checkpoint.old")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            make_private_folder(fresh)
            ledger.copy_to(fresh / "ledger.db")
            copy_stores(fresh, self.folder)
            parts = sorted(path.name for path in fresh.glob(f"*{STORES}"))
            alike = _alike(state["hardware"]) if "hardware" in state else {}
            replace_durably(fresh / _STATE, json_with_digest({**state, **alike, "parts": parts}))
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
        done_s = time.monotonic()
        self._next_s = done_s + max(EVERY_S, (done_s - begun_s) / MOST_OF_TIME)

    def load(self) -> tuple[Ledger, Mapping[str, Store], dict[str, Any]]:
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


def _loaded(folder: Path) -> tuple[Ledger, Mapping[str, Store], dict[str, Any]]:
    parts, older = sorted(folder.glob(f"*{STORES}")), sorted(set(folder.glob("*.db")) - {folder / "ledger.db"})
    for path in (folder / "ledger.db", *older, *parts):
        with _reading(path), open_foreign(path, sys.maxsize) as file:  # checked first: SQLite would block on a pipe
            if not file.read(1):
                raise Damaged(path, "it is empty")
    with _reading(folder / "ledger.db"):
        ledger = Ledger(None, folder / "ledger.db")
    with _reading(folder):
        stores: Mapping[str, Store] = {path.stem: _stored(path) for path in older} if older else KeptStores(parts)
    path, missing = folder / _STATE, ledger.enrolled().keys() - stores.keys()
    if not path.exists():
        _check_complete(folder, missing)
    with _reading(path):
        state = checked_json(path, read_foreign(path), is_old=_is_old)
        if not _is_old(state):
            raise ValueError("its values do not fit")
        check_fields(state, _VALUES)
        state["hardware"] = _by_device(state["hardware"])
        lost = {*state.pop("parts", ())} - {each.name for each in parts}
        missing -= {str(name) for name in state.get("dormant", ())}
    if lost:
        raise Damaged(folder / min(lost), "it is missing")
    _check_complete(folder, missing)
    return ledger, stores, state


def _stored(path: Path) -> Store:
    """Return the store in a file of an older checkpoint, which had one file for each device."""
    with _reading(path), closing(SqliteStore(path)) as disk:
        return in_memory(disk.welcome(), disk.round_start(), disk.finished())


def _alike(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of boards in a shorter form: in a large fleet most are in the same state."""
    different: dict[str, int] = {}
    of = {device: different.setdefault(json.dumps(state), len(different)) for device, state in hardware.items()}
    return {"hardware": {_DIFFERENT: [json.loads(each) for each in different], _OF: of}}


def _by_device(hardware: dict[str, Any]) -> dict[str, Any]:
    """Undo `_alike`; older checkpoints have each board's state."""
    if hardware.keys() != {_DIFFERENT, _OF}:
        return hardware
    return {device: hardware[_DIFFERENT][at] for device, at in hardware[_OF].items()}


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
    """Return whether this state is from a version without digests."""
    return isinstance(plain, dict) and {"now_s", "begun_s", "hardware"} <= plain.keys()


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
