"""Checkpoints of a simulation in memory, written often enough that a crash loses at most about half a minute."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.ledger import Ledger
from edge_sdk.device.store import MemoryStore, SqliteStore, Store
from edge_sdk.errors import StoreError, UsageError

EVERY_S = 30.0
"""Real seconds between two checkpoints."""
FIRST_S = 3.0
"""Real seconds until the first checkpoint; it is early so that a run that is killed soon can resume, too."""
_STATE = "world.json"


class Checkpoints:
    """The checkpoint in a folder; each new one replaces the one before in one rename."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_s = time.monotonic() - EVERY_S + FIRST_S

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last_s >= EVERY_S

    def save(self, ledger: Ledger, stores: Mapping[str, Store], state: Mapping[str, Any]) -> None:
        """Copy everything to disk; state: plain values of the simulation's own."""
        fresh, old = self._folder.with_name("checkpoint.new"), self._folder.with_name("checkpoint.old")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True)
            ledger.copy_to(fresh / "ledger.db")
            (fresh / _STATE).write_text(json.dumps(state), encoding="utf-8")
            for name, store in stores.items():
                _copy(store, fresh / f"{name}.db")
            if self._folder.exists():
                shutil.rmtree(old, ignore_errors=True)
                self._folder.replace(old)
            fresh.replace(self._folder)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise StoreError(f"{fresh}: {error}; check free space and the folder's rights") from error
        self._last_s = time.monotonic()

    def load(self) -> tuple[Ledger, dict[str, Store], dict[str, Any]]:
        """Read the ledger, the devices' stores and the state of the last checkpoint.

        Raises UsageError where there is none.
        """
        folder = self._folder if self._folder.exists() else self._folder.with_name("checkpoint.old")
        if not (folder / "ledger.db").exists():
            raise UsageError(f"{self._folder.parent}: nothing to resume here; start without --resume")
        ledger = Ledger(None, folder / "ledger.db")
        stores: dict[str, Store] = {}
        for path in sorted(folder.glob("*.db")):
            if path.stem != "ledger":
                stores[path.stem] = memory = MemoryStore()
                disk = SqliteStore(path)
                _fill(memory, disk)
                disk.close()
        missing = sorted(ledger.enrolled().keys() - stores.keys())
        if missing:
            raise UsageError(
                f"{folder}: keeps no state of {missing[0]}: the run was begun over a broker, go on with one (--broker)"
            )
        try:
            state: dict[str, Any] = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder / _STATE}: cannot be read ({type(error).__name__}); start anew") from None
        return ledger, stores, state


def _copy(store: Store, path: Path) -> None:
    disk = SqliteStore(path)
    _fill(disk, store)
    disk.close()


def _fill(target: Store, source: Store) -> None:
    welcome, start = source.welcome(), source.round_start()
    if welcome is not None:
        target.save_welcome(welcome)
    if start is not None:
        target.save_start(start)
    for done in source.finished():
        target.save(done)
