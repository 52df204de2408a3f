"""Logs why the broker cannot be reached, for an app that did not ask for news."""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)

AGAIN_S = 600.0
"""The minimum time in seconds between two logs of the same reason, because a link may come and go all day."""


class LinkNotices:
    """Logs the link faults of one device, each reason once within AGAIN_S."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._last = ""
        self._since_s = -math.inf

    def lost(self, reason: str, now_s: float) -> None:
        """Log why the broker cannot be reached, unless the same reason was logged within AGAIN_S."""
        if reason != self._last or now_s >= self._since_s + AGAIN_S:
            self._last, self._since_s = reason, now_s
            log.warning("%s: no link to the broker, retrying: %s", self._device, reason)
