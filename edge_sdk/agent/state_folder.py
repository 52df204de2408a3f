"""The folder of a device's state: its layout, and how a federation's store in it is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edge_sdk.at_rest.files import opened_or_anew
from edge_sdk.device.recovery import check_owner
from edge_sdk.device.store import CONTENTS, MemoryStore, SqliteStore, Store
from edge_sdk.device.training.budget import NAME as LEDGER_NAME
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.durable import is_emptied, refuse_emptied
from edge_sdk.errors import UsageError
from edge_sdk.privacy.release import Guarantee
from edge_sdk.serving.versions import has_served

T = TypeVar("T")
PUBLIC = "public"
"""The name of the folder of fetched public sets in a state folder."""


def lasting(place: T) -> T | Path:
    """Make a path absolute, because the app may change its working directory; return other objects unchanged."""
    return Path(place).absolute() if isinstance(place, (str, Path)) else place


class StatePlaces:
    """Where a device of one federation keeps its state: in a folder, a given Store, or memory."""

    def __init__(self, state: str | Path | Store | None, federation: str, device: str) -> None:
        """state: the folder, the Store, or None for memory."""
        self._device, self._federation = device, federation
        self._store: Store | None = None
        self.folder: Path | None = None
        """None without a state folder."""
        self._forgets_budget = False
        if isinstance(state, (str, Path)):
            self.folder = lasting(Path(state))
        else:
            self._store = state

    def ledger(self, privacy: Guarantee | None) -> BudgetLedger | None:
        """Return the privacy ledger, which all federations of the device share.

        Beside an app's own Store it is in memory.  Raises UsageError without a state, because the ledger would be lost
        with the process.
        """
        if privacy is None:
            return None
        if self.folder is None and self._store is None:
            raise UsageError("privacy: the spent budget must survive a restart: give state=FOLDER for its ledger")
        self._forgets_budget = self.folder is None
        return BudgetLedger(None if self.folder is None else self.folder / LEDGER_NAME, privacy)

    @property
    def served(self) -> Path | None:
        """The folder of the served models, or None if they are kept in memory."""
        return None if self.folder is None else self.folder / f"{self._federation}.served"

    @property
    def offered(self) -> Path | None:
        """The folder of model files that were offered to the device, or None without a state folder."""
        return None if self.folder is None else self.folder / f"{self._federation}.offered"

    @property
    def chunks(self) -> Path | None:
        """The file with the length limits found for brokers that state none, or None without a folder."""
        return None if self.folder is None else self.folder / f"{self._federation}.chunks"

    def public(self, cache: str | Path | None) -> Path | None:
        """Return the folder for fetched public sets: the given one, one in the state, or None for a temporary one."""
        if cache is not None:
            return lasting(Path(cache))
        return None if self.folder is None else self.folder / PUBLIC

    @property
    def keeps_public(self) -> bool:
        """Whether a fetched public set has a place without a given folder.  An app's own Store has none."""
        return self._store is None

    def opener(self, *, quarantine: bool, tell: Callable[[str], None]) -> Callable[[], Store]:
        """Return a function that opens the store, for the first time or again.

        quarantine: whether a damaged file is set aside.
        tell: called with a line about a damaged or empty file.

        Raises UsageError for a Store of another device.  The function does so for a file of another device.
        """
        if self.folder is not None:
            path = self.folder / f"{self._federation}.db"
            private = [each for each in self._contents() if each.name != PUBLIC]  # what is fetched is for everybody
            return lambda: opened_or_anew(
                lambda: self._file(path, tell), path, quarantine=quarantine, tell=tell, private=private
            )
        if self._forgets_budget:
            tell("the privacy ledger is in memory, as state= is a Store: its spending is forgotten with this process")
        store = MemoryStore() if self._store is None else self._store
        check_owner(store, self._device, "state")
        return lambda: store

    def _contents(self) -> list[Path]:
        return sorted(self.folder.iterdir()) if self.folder is not None and self.folder.is_dir() else []

    def _file(self, path: Path, tell: Callable[[str], None]) -> Store:
        """Open a new file, or one with this device's state.  Raises Damaged if it is not as it was written."""
        if is_emptied(path) and not (self.served and has_served(self.served)):
            tell(
                f"{path}: is empty, as after an interrupted first start; this device joins again; if it took part "
                "before, its state is lost: stop it, and restore a copy"
            )
        else:
            refuse_emptied(path, CONTENTS)
        store = SqliteStore(path)
        try:
            check_owner(store, self._device, str(path))
        except BaseException:
            store.close()
            raise
        return store
