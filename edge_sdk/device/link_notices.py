"""Logs why there is no link to the broker, for an app that did not ask for news."""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)

AGAIN_S = 600.0
"""The same reason is logged again after so many seconds at the earliest: a link may come and go all day."""


class LinkNotices:
    """What one device has logged about its link."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._last = ""
        self._since_s = -math.inf

    def lost(self, reason: str, now_s: float) -> None:
        """Log why there is no link, unless the same was logged a while ago."""
        if reason != self._last or now_s >= self._since_s + AGAIN_S:
            self._last, self._since_s = reason, now_s
            log.warning("%s: no link to the broker, tries again: %s", self._device, reason)
