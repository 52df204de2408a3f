"""Alerts of a running coordinator: a line in its log, and a message to a webhook, when one begins and when it ends.

The same alerts are Prometheus rules in alert-rules.yml beside this file, which read the gauges of `fleet_figures`.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from coordinator.federation_table import read_duration
from coordinator.record.observer import RunObserver, RunView
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.uplift import uplift
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Real, Text

LOOK_EVERY_S = 10.0
"""Seconds between two looks."""
HEAT = frozenset({"temperature", "throttled"})
"""The words with which devices decline because they are too hot."""
LEAST_BOARDS = 3
"""With fewer devices, a hot one raises no alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsTable:
    """The section [alerts]."""

    webhook: Annotated[str, Text(1000)] | None = None
    """An address that receives each alert as a JSON object by POST; default: none."""
    quiet: Annotated[str, Text(20)] = "24h"
    """How long no round may end with an upload before that is an alert: 90s, 30min, 24h, 7d."""
    hot_share: Annotated[float, Real(0.01, 1.0)] = 0.33
    """The share of the devices that decline because they are too hot at which that is an alert."""
    certificate_days: Annotated[float, Real(0.0, 3650.0)] = 30.0
    """So many days before a certificate of the link to the broker ends, that is an alert."""

    def check(self, where: str) -> None:
        """Raise UsageError for an address or a duration that cannot be."""
        read_duration(self.quiet, f"{where}.quiet")
        if self.webhook is not None:
            check_webhook(self.webhook, f"{where}.webhook")

    @property
    def quiet_s(self) -> float:
        """`quiet` in seconds."""
        return read_duration(self.quiet, "alerts.quiet")


def fleet_figures(record: RunRecord, here: int, idle_s: float, days: float | None = None) -> dict[str, float]:
    """The figures that alerts read, by their names for Prometheus.

    here: the devices that take part.  idle_s: seconds since a round ended with an upload.  days: until a certificate
    ends.
    """
    hot = sum(word in HEAT for word, _ in record.declining.values())
    found = uplift(record.control)
    known = {"idle_s": idle_s, "devices/here": here, "devices/hot": hot, **(found.written() if found else {})}
    return known if days is None else {**known, "certificate/days": days}


def firing(figures: Mapping[str, float], table: AlertsTable) -> dict[str, str]:
    """Return the alerts that hold, each with its line."""
    found: dict[str, str] = {}
    if figures["idle_s"] > table.quiet_s:
        found["nobody-trained"] = f"no device trained for {table.quiet}"
    if (high := figures.get("uplift/high")) is not None and high < 0:
        mean = 100 * figures["uplift"]
        found["uplift-below-0"] = f"the federation does harm: uplift {mean:+.1f} points, at most {100 * high:+.1f}"
    hot, here = figures["devices/hot"], figures["devices/here"]
    if here >= LEAST_BOARDS and hot >= table.hot_share * here:
        found["boards-too-hot"] = f"{hot:.0f} of {here:.0f} devices are too hot to train"
    days = figures.get("certificate/days", math.inf)
    if days < table.certificate_days:
        when = f"ends in {days:.0f} days" if days > 0 else f"ended {-days:.0f} days ago"
        found["certificate-ends"] = f"a certificate of the coordinator's link {when}: renew it"
    return found


class AlertObserver(RunObserver):
    """Looks every LOOK_EVERY_S whether an alert begins or ends."""

    def __init__(
        self,
        table: AlertsTable,
        federation: str,
        say: Callable[[str], None],
        *,
        show: Callable[[Mapping[str, float]], None] = lambda _figures: None,
        webhook: Webhook | None = None,
        certificate_end_s: Callable[[], float | None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """say: receives the lines.  show: receives the figures that alerts read.

        certificate_end_s: returns when the first certificate of the link ends, or None without certificates.  That and
        what `wall` returns are seconds since 1970.
        """
        self._table, self._federation, self._say, self._show = table, federation, say, show
        self._webhook, self._certificate_end_s, self._wall = webhook, certificate_end_s, wall
        self._trained_s = self._look_s = wall()
        self._firing: dict[str, str] = {}
        self._view: RunView | None = None

    def begun(self, view: RunView) -> None:
        """Ask this coordinator; after a restart, count from the last round's opening where that is known."""
        self._view = view
        self._trained_s = min(self._trained_s, view.record.pace.get("opened_s") or self._trained_s)

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
        """Note that devices trained."""
        if result.contributors:
            self._trained_s = self._wall()

    def waited(self, record: RunRecord) -> None:
        """Look, if it is time."""
        now_s = self._wall()
        if now_s < self._look_s or self._view is None:
            return
        self._look_s = now_s + LOOK_EVERY_S
        idle_s, end_s = max(0.0, now_s - self._trained_s), self._certificate_end_s()
        days = None if end_s is None else (end_s - now_s) / 86_400.0  # seconds of a day
        figures = fleet_figures(record, self._view.exchange().here, idle_s, days)
        self._show(figures)
        found = firing(figures, self._table)
        for name, text in found.items():
            if name not in self._firing:
                self._tell(name, "firing", text, now_s)
        for name, text in self._firing.items():
            if name not in found:
                self._tell(name, "resolved", text, now_s)
        self._firing = found
        for line in self._webhook.faults() if self._webhook else []:
            self._say(line)

    def _tell(self, name: str, state: str, text: str, now_s: float) -> None:
        self._say(f"alert {name}: {text}" if state == "firing" else f"alert {name} is over")
        if self._webhook is not None:
            about: dict[str, Any] = {"federation": self._federation, "alert": name, "state": state}
            self._webhook.post({**about, "text": text, "time_s": round(now_s, 3)})


MOST_WAITING = 100
"""The most messages that wait; further ones are dropped, and counted."""
TRIES_AFTER_S = (1.0, 10.0, 60.0)
"""The waits in seconds before a message is sent again."""
ANSWER_S = 10.0
"""The longest wait for an answer, in seconds."""
LAST_S = 5.0
"""How long closing waits for messages that are not sent yet, in seconds."""


def check_webhook(url: str, where: str) -> None:
    """Raise UsageError unless this is an http or https URL with a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{where}: expected an address such as https://HOST/PATH, found {parts.scheme or url!r}")


class Webhook:
    """Sends JSON objects to one URL, one after the other, each at most four times."""

    def __init__(self, url: str, *, tries_after_s: tuple[float, ...] = TRIES_AFTER_S) -> None:
        self._url, self._tries_after_s = url, tries_after_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._stopping = threading.Event()
        self._faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, name="webhook", daemon=True)
        self._thread.start()

    def post(self, message: Mapping[str, Any]) -> None:
        """Send a message soon.  Returns at once."""
        try:
            self._waiting.put_nowait(json.dumps(message).encode())
        except queue.Full:
            self._faults.put(f"more than {MOST_WAITING} messages wait; this one is dropped")

    def faults(self) -> list[str]:
        """Return why messages were lost since the last call, without the URL, which is often a secret."""
        found = []
        while not self._faults.empty():
            found.append(f"webhook at {urlsplit(self._url).hostname}: {self._faults.get()}")
        return found

    def close(self) -> None:
        """Give waiting messages a moment, then stop."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=LAST_S)
        self._thread.join(LAST_S)
        self._stopping.set()

    def _send_all(self) -> None:
        while (content := self._waiting.get()) is not None:
            fault = self._sent(content)
            for wait_s in self._tries_after_s:
                if not fault or self._stopping.wait(wait_s):
                    break
                fault = self._sent(content)
            if fault:
                self._faults.put(f"a message was not taken after {1 + len(self._tries_after_s)} tries: {fault}")

    def _sent(self, content: bytes) -> str:
        """Send once; returns what was wrong, or an empty text."""
        headers = {"Content-Type": "application/json", "User-Agent": "edge-sdk"}
        request = urllib.request.Request(self._url, content, headers)  # noqa: S310  # check_webhook allows http alone
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310  # likewise
                answer.read(1024)
        except urllib.error.HTTPError as error:
            return f"it answers {error.code}"
        except (OSError, ValueError) as error:
            return type(error).__name__
        return ""
