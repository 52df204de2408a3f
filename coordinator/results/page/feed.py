"""Hands states of the page from the run's thread to the page's, and encodes them once for all browsers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from coordinator.results.page.values import PageState

EVERY_S = 1.0
"""The least seconds between two states that a browser is sent."""
IDLE_S = 2.0
"""Seconds between two states that a run publishes while no browser looks."""
LOOKS_S = 5.0
"""A browser counts as looking for this long after it was last served."""
EMPTY = PageState(head={"state": "starting", "text": "the run starts", "clock": "none", "now_s": 0.0})


@dataclass(frozen=True, slots=True)
class PageOrder:
    """A command that was given on the page."""

    operation: str
    device: str | None
    answer: Future[tuple[bool, str]]
    """Whether it was carried out, and a line about it."""


@dataclass(frozen=True, slots=True)
class SentState:
    """The text of an event that is sent to a browser, and the number of the state that the browser then shows."""

    number: int
    event: str
    text: str


class Feed:
    """The newest state.  `publish` is called by the run's thread; all other methods by the page's alone.

    Publishing is one assignment: the run never waits for the page.
    """

    def __init__(self, state: PageState = EMPTY, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.newest = state
        """The state that was published last."""
        self._looked_s = -LOOKS_S
        self._shown, self._number = state, 1
        self._whole: SentState | None = None
        self._change: SentState | None = None
        self.guarded = False
        """Whether only those with the token reach the page, so that it may give commands."""
        self.takes_orders = False
        """Whether a run is there that carries commands out."""
        self._orders: SimpleQueue[PageOrder] = SimpleQueue()

    # -- the run's thread ---------------------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether a browser looks."""
        return self._clock() - self._looked_s < LOOKS_S

    def publish(self, state: PageState) -> None:
        """Make a state the newest one."""
        self.newest = state

    def end(self, state: str, text: str) -> None:
        """Publish that the run is over, with everything else as it was."""
        self.newest = replace(self.newest, head={**self.newest.head, "state": state, "text": text})

    def orders(self) -> Iterator[PageOrder]:
        """Return the commands that were given since the last call."""
        with suppress(Empty):
            while True:
                yield self._orders.get_nowait()

    # -- the page's thread --------------------------------------------------------------------------------------------

    def newer_than(self, number: int | None) -> SentState | None:
        """Return what a browser that shows the state of this number lacks, or None if it shows the newest.

        A browser that shows none, or that missed one, gets everything.
        """
        self._looked_s = self._clock()
        self._take()
        if number == self._number:
            return None
        if self._change is not None and number == self._number - 1:
            return self._change
        if self._whole is None:
            self._whole = SentState(self._number, "state", _json(self._shown.plain()))
        return self._whole

    def order(self, operation: str, device: str | None) -> Future[tuple[bool, str]]:
        """Hand a command to the run's thread; its answer comes when the run has a moment."""
        found = PageOrder(operation, device, Future())
        self._orders.put(found)
        return found.answer

    def curves(self, devices: Sequence[str]) -> str:
        """Return curves of accuracy, as JSON; devices: empty for all."""
        return _json(self.newest.curves(devices))

    def _take(self) -> None:
        newest = self.newest
        if newest is self._shown:
            return
        change = newest.since(self._shown)
        self._shown, self._number = newest, self._number + 1
        self._whole, self._change = None, SentState(self._number, "change", _json(change))


def _json(value: Any) -> str:
    """Compact JSON on one line; NaN and infinity, which JSON lacks, become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
