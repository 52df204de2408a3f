"""Numbers the calls of a ledger within each event, so that a replay can repeat the disk's refusals.

A refusal changes what the server does next, so a trace records each one with the number of its call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from coordinator.ledger import Ledger
from coordinator.trace.log import LedgerRefused
from edge_sdk.errors import RunFailed, StoreError

T = TypeVar("T")


class CountedLedger(ABC):
    """A ledger whose calls are numbered from 0 within each event; reading an attribute counts as a call."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._calls: int | None = None
        """The number of calls within this event, or None between events."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Number the calls from 0 until the end of the context."""
        self._calls = 0
        try:
            yield
        finally:
            self._calls = None

    def __getattr__(self, name: str) -> Any:
        found = self._numbered(partial(getattr, self._ledger, name))
        if not callable(found):
            return found
        return lambda *values, **named: self._numbered(partial(found, *values, **named))

    def _numbered(self, act: Callable[[], T]) -> T:
        if self._calls is None:
            return act()
        self._calls += 1
        return self._carried_out(self._calls - 1, act)

    @abstractmethod
    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        """Carry out the call of this number, or refuse it.  Raises StoreError."""


class RecordedLedger(CountedLedger):
    """Passes the disk's refusals on and records them."""

    def __init__(self, ledger: Ledger, record: Callable[[LedgerRefused], None]) -> None:
        """record: receives each refusal, and must not raise."""
        super().__init__(ledger)
        self._record = record

    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        try:
            return act()
        except StoreError as error:
            self._record(LedgerRefused(call, str(error)))
            raise


class ReplayedLedger(CountedLedger):
    """Refuses the calls that the run's disk refused."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._refused: dict[int, str] = {}

    @contextmanager
    def refusing(self, refused: Iterable[LedgerRefused]) -> Iterator[None]:
        """Refuse these calls until the end of the context.  Raises RunFailed if the server does not make them."""
        self._refused = {each.call: each.reason for each in refused}
        with self.counted():
            yield
        if self._refused:
            raise RunFailed("the run's disk refused a call of the ledger that the replay does not make")

    def _carried_out(self, call: int, act: Callable[[], T]) -> T:
        if call in self._refused:
            raise StoreError(self._refused.pop(call))
        return act()
