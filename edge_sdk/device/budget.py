"""The budget of a device's data: what was released of it, written down before any byte of it leaves.

A release is a row with the noised bytes themselves.  Whoever asks for the same data again, after a crash or in another
federation, gets those bytes: reuse costs nothing, and fresh noise on old data is never drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.durable import as_store_error, open_database, transaction
from edge_sdk.errors import Refused, UsageError
from edge_sdk.privacy.accountant import composed, epsilon
from edge_sdk.privacy.release import Guarantee

_SCHEMA = """
CREATE TABLE IF NOT EXISTS budget (epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    data BLOB PRIMARY KEY, mu REAL NOT NULL, classes INTEGER NOT NULL, sums BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS life (epoch INTEGER NOT NULL, inode INTEGER NOT NULL);
"""
NAME = "privacy.db"
"""The file of the ledger in a device's state folder, which all federations of the device share."""
_ROUNDING = 1e-9
"""The share by which the sum of squares may exceed the budget, for it is added up in floating point."""
_SPENT = "count the budget of this data as spent, or remove the file and begin with data that was never released"


class BudgetLedger:
    """One SQLite file, which belongs to the data, not to a federation; methods raise StoreError if the disk fails."""

    def __init__(self, path: Path | None, budget: Guarantee) -> None:
        """path: None: in memory.  Raises UsageError if the file was begun with a smaller or another budget."""
        self._path, self.budget = path, budget
        self._db = open_database(path, _SCHEMA)
        with as_store_error(path):
            known = self._db.execute("SELECT epsilon, delta FROM budget").fetchone()
        if known is None:
            with transaction(self._db, path):
                self._db.execute("INSERT INTO budget VALUES (?, ?)", (budget.epsilon, budget.delta))
        elif known != (budget.epsilon, budget.delta):
            self._db.close()
            raise UsageError(
                f"{path}: the budget of this data is epsilon = {known[0]:g} at delta = {known[1]:g}, not "
                f"{budget.epsilon:g} at {budget.delta:g}: what was released under it cannot be called back"
            )
        self.epoch = self._begun()
        """How often the file was opened and how much was released, counted together: a backup has a smaller one."""

    def _begun(self) -> int:
        """Count one opening, and return the epoch.  Raises UsageError for a copy of a ledger."""
        inode = self._path.stat().st_ino if self._path is not None else 0
        with as_store_error(self._path):
            known = self._db.execute("SELECT epoch, inode FROM life").fetchone()
        if known is not None and known[1] != inode:
            self._db.close()
            raise UsageError(
                f"{self._path}: this budget ledger is a copy, which does not know what left under the first: {_SPENT}"
            )
        with transaction(self._db, self._path):
            if known is None:
                self._db.execute("INSERT INTO life VALUES (0, ?)", (inode,))
            return self._counted()

    def _counted(self) -> int:
        """Add one to the epoch, within a transaction, and return it."""
        self._db.execute("UPDATE life SET epoch = epoch + 1")
        (epoch,) = self._db.execute("SELECT epoch FROM life").fetchone()
        return int(epoch)

    def check_since(self, seen: int) -> None:
        """Raise UsageError if the ledger's epoch is before one that its device has seen: it came from a backup."""
        if self._path is not None and self.epoch < seen:
            raise UsageError(f"{self._path}: this budget ledger is older than its device's state, a backup: {_SPENT}")

    def refusal(self, method: str, cost: Guarantee | None) -> Refused | None:
        """Return why the device takes no part in a method; None: it may.

        cost: the guarantee of one release of this method; None: it gives none.
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
        with as_store_error(self._path):
            return composed(mu for (mu,) in self._db.execute("SELECT mu FROM releases").fetchall())

    @property
    def spent_epsilon(self) -> float:
        """The epsilon of all releases together, at the budget's delta; 0: nothing was released."""
        spent = self.spent
        return epsilon(self.budget.delta, spent) if spent else 0.0

    @property
    def releases(self) -> int:
        """How many versions of the data were released."""
        with as_store_error(self._path):
            (count,) = self._db.execute("SELECT COUNT(*) FROM releases").fetchone()
        return int(count)

    def released(self, data: bytes, cost: Guarantee, make: Callable[[], Doubles]) -> Doubles:
        """Return the noised sums of a version of the data: those of before, or new ones, durable on return.

        data: names the version, such as a digest of its samples.  make: draws the noised sums, (k, m).  Raises
        UsageError where the budget does not suffice; then nothing is drawn.
        """
        found = self._row(data)
        if found is not None:
            return found
        limit, needed = self.budget.mu, composed([self.spent, cost.mu])
        if needed > limit * (1 + _ROUNDING):
            raise UsageError(
                f"privacy: this release would take epsilon from {self.spent_epsilon:.3g} to "
                f"{epsilon(self.budget.delta, needed):.3g}, and the budget of this data is {self.budget.epsilon:g} at "
                f"delta = {self.budget.delta:g}: go on with what was released, or keep the new samples back"
            )
        sums = np.ascontiguousarray(make(), "<f8")
        with transaction(self._db, self._path):
            row = (data, cost.mu, len(sums), sums.tobytes())
            self._db.execute("INSERT INTO releases VALUES (?, ?, ?, ?)", row)
            epoch = self._counted()
        self.epoch = epoch
        return sums

    def before(self, data: bytes) -> Doubles | None:
        """Return the noised sums of a version of the data that was released before; None: it was not."""
        return self._row(data)

    def _row(self, data: bytes) -> Doubles | None:
        with as_store_error(self._path):
            found = self._db.execute("SELECT classes, sums FROM releases WHERE data = ?", (data,)).fetchone()
        return None if found is None else np.frombuffer(found[1], "<f8").reshape(found[0], -1)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
