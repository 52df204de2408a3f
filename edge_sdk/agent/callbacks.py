"""Delivers a device's news to its app: through the app's callbacks, or to the log if it registered none.

Errors of callbacks are counted, logged the first time, and otherwise ignored.

An operator may request the last lines that the device printed for its owner.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.owner import Owner
from edge_sdk.device.standing import OwnAccuracy
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.operator_messages import MAX_LOG_LINES

STAMP = "%Y-%m-%d %H:%M:%SZ"


class RecentLines:
    """Keeps the last MAX_LOG_LINES lines, each with the time in UTC."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: returns seconds since 1970."""
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def add(self, line: str) -> None:
        """Keep a line; beyond MAX_LOG_LINES the oldest is dropped."""
        stamp = time.strftime(STAMP, time.gmtime(self._clock()))
        self._lines.append(one_line(f"{stamp} {line}"))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the oldest first."""
        return tuple(self._lines)


def round_lines(report: RoundReport) -> list[str]:
    """Return the lines that a device prints after an exchange: the measured accuracies."""
    lines = []
    if "accuracy" in report.personal_metrics:
        own = report.personal_metrics["accuracy"]
        lines.append(f"round {report.personal_round}, accuracy {own:.1%} of its own model after training")
    if "accuracy" in report.metrics:
        which = " of the global model" if report.global_model else ""
        lines.append(f"round {report.metrics_round}, accuracy {report.metrics['accuracy']:.1%}{which}")
    return lines


log = logging.getLogger(__name__)

LINK_LOG_INTERVAL_S = 600.0
"""The minimum time between two logs of the same link fault, because a link may come and go all day."""


class Callbacks:
    """The callbacks of one agent, by kind, such as on_round."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._registered: dict[str, list[Callable[[Any], None]]] = {}
        self.errors: Counter[str] = Counter()
        """The number of errors by kind of callback."""

    def add(self, kind: str, callback: Callable[[Any], None]) -> None:
        """Register a callback.  Raises UsageError for an object that cannot be called."""
        if not callable(callback):
            raise UsageError(f"{kind}: found {type(callback).__name__}: give a function of one argument")
        self._registered.setdefault(kind, []).append(callback)

    def has(self, kind: str) -> bool:
        """Whether a callback of this kind is registered."""
        return bool(self._registered.get(kind))

    def call(self, kind: str, argument: object) -> None:
        """Call all callbacks of a kind, in the order in which they were registered."""
        for callback in self._registered.get(kind, ()):
            self._call_one(kind, callback, argument)

    def _call_one(self, kind: str, callback: Callable[[Any], None], argument: object) -> None:
        try:
            callback(argument)
        except BaseException as error:  # asyncio.CancelledError and pytest.fail() derive from BaseException
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and isinstance(error, KeyboardInterrupt | SystemExit):
                raise  # raised by a signal handler, which may interrupt any line of the main thread
            self.errors[kind] += 1
            if self.errors[kind] == 1:  # a callback that fails in every round would fill the disk
                log.exception("agent %s: a callback of %s failed; further ones are only counted", self._device, kind)


class AppOwner(Owner):
    """Gives an app the news of its device, and keeps the last lines for operators."""

    def __init__(self, device: str, *, discloses_classes: bool, sends_logs: bool) -> None:
        """discloses_classes: whether operators may read which classes the device holds.

        sends_logs: whether they may read anything.
        """
        self.callbacks = Callbacks(device)
        self._device, self._discloses_classes, self._sends_logs = device, discloses_classes, sends_logs
        self._recent = RecentLines()
        self._link_fault, self._link_fault_logged_s = "", -math.inf
        self.last_news = ""
        """The last line of news, or empty."""
        self.measured = OwnAccuracy()

    def news(self, line: str) -> None:
        """Implement Owner."""
        self._recent.add(line)
        self.last_news = line
        self.callbacks.call("on_link", line)

    def class_news(self, line: str) -> None:
        """Implement Owner: operators may read the line only if the owner discloses classes."""
        if self._discloses_classes:
            self.news(line)
        else:
            self.callbacks.call("on_link", line)

    def warn(self, line: str) -> None:
        """Log a line, and give it to the app."""
        log.warning("%s: %s", self._device, line)
        self.news(line)

    def warn_of_classes(self, line: str) -> None:
        """Log a line that reveals which classes the device holds, and give it to the app."""
        log.warning("%s: %s", self._device, line)
        self.class_news(line)

    def unanswered(self, line: str) -> None:
        """Implement Owner: log the line if the app has no callback for news."""
        if not self.callbacks.has("on_link"):
            log.warning("%s: %s", self._device, line)
        self.news(line)

    def link_lost(self, reason: str, now_s: float) -> None:
        """Implement Owner: log the line, once per reason and interval, if the app has no callback for news."""
        again = reason == self._link_fault and now_s < self._link_fault_logged_s + LINK_LOG_INTERVAL_S
        if not self.callbacks.has("on_link") and not again:
            self._link_fault, self._link_fault_logged_s = reason, now_s
            log.warning("%s: no link to the broker, retrying: %s", self._device, reason)

    def stored(self, report: RoundReport, *, round_ends: bool) -> None:
        """Implement Owner."""
        self.measured.note(report)
        for line in round_lines(report):
            self._recent.add(line)
        self.callbacks.call("on_update", report)
        if round_ends:
            self.callbacks.call("on_round", report)

    def last_lines(self) -> Sequence[str] | None:
        """Implement Owner."""
        return self._recent.lines if self._sends_logs else None
