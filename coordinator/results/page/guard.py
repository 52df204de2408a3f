"""Who may see the page: those with the token, where other machines reach it, and a limit on wrong ones."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum

TOKEN_VARIABLE = "EDGE_SDK_PAGE_TOKEN"  # noqa: S105  # the name of the variable
"""The environment variable with the token; without it one is drawn."""
PROXIES_VARIABLE = "EDGE_SDK_PAGE_PROXIES"
"""The environment variable with the addresses of proxies, separated by commas, whose X-Forwarded-For counts."""
LEAST_TOKEN = 16
"""The fewest characters of a token that a user sets."""
WRONG = 10
"""Wrong tokens that one address may send before it has to wait."""
WINDOW_S = 60.0
"""Seconds after which wrong tokens are forgotten."""
MOST_ADDRESSES = 1024
"""The most addresses whose wrong tokens are counted; beyond it the oldest is forgotten."""


class PageVerdict(IntEnum):
    """Whether a request is served, as the status of HTTP."""

    ALLOWED = 200
    NO_TOKEN = 401
    TOO_MANY = 429


class Guard:
    """Checks the token of each request, and counts wrong ones by address.

    A request without any token is refused, and not counted: browsers ask for icons on their own.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token, clock
        self.cookie = f"edge-sdk-page-{hashlib.sha256(token.encode()).hexdigest()[:16]}"
        """The name of the cookie with the token.  Browsers send a host's cookies to all of its ports: so each token has
        a name of its own, and that of another page, or of an earlier start, neither takes its place nor counts."""
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: the number of wrong tokens, and when the first of them came (s)."""

    def verdict(self, address: str, given: str | None) -> PageVerdict:
        """Judge a request.  Beyond WRONG wrong tokens an address waits, even if it then sends the right one."""
        count, since_s = self._wrong.get(address, (0, self._clock()))
        if self._clock() - since_s >= WINDOW_S:
            count, since_s = 0, self._clock()
        if count >= WRONG:
            return PageVerdict.TOO_MANY
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            return PageVerdict.ALLOWED
        if given is not None:
            self._wrong[address] = (count + 1, since_s)
            if len(self._wrong) > MOST_ADDRESSES:
                self._wrong.popitem(last=False)
        return PageVerdict.NO_TOKEN
