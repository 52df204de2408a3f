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
from edge_sdk.errors import UsageError
from edge_sdk.privacy.accountant import composed, epsilon
from edge_sdk.privacy.release import Guarantee

_SCHEMA = """
CREATE TABLE IF NOT EXISTS budget (epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    data BLOB PRIMARY KEY, mu REAL NOT NULL, classes INTEGER NOT NULL, sums BLOB NOT NULL);
"""
_ROUNDING = 1e-9
"""The share by which the sum of squares may exceed the budget, for it is added up in floating point."""


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
        return sums

    def _row(self, data: bytes) -> Doubles | None:
        with as_store_error(self._path):
            found = self._db.execute("SELECT classes, sums FROM releases WHERE data = ?", (data,)).fetchone()
        return None if found is None else np.frombuffer(found[1], "<f8").reshape(found[0], -1)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
