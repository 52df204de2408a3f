"""Posts messages to a webhook from a thread of its own, so that a slow or dead address never holds up a round."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from edge_sdk.errors import UsageError

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
