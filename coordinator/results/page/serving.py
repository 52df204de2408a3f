"""The page of a run in this process: opened before the run begins, closed after it."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.address import ListenAddress, bind, parse_address
from coordinator.results.page.feed import Feed
from coordinator.results.page.guard import LEAST_TOKEN, TOKEN_VARIABLE, Guard
from edge_sdk.errors import MissingExtra, UsageError

PAGE_PORT = 8421
"""Where `edge-sdk page` serves by default."""
UNSPECIFIED_HOSTS = ("0.0.0.0", "::")  # noqa: S104  # recognised, not bound
"""All addresses of this machine."""


@contextmanager
def served(
    feed: Feed, text: str, say: Callable[[str], None], option: str = "--page", *, commands: bool = True
) -> Iterator[None]:
    """Serve a feed at HOST:PORT as long as the context lasts; `say` takes a line with the address.

    commands: whether the run may take commands of the page; a folder takes none.

    Raises UsageError for an address that cannot be used, MissingExtra without the extra `page`.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "page", "the live page")
    address = parse_address(text, option, PAGE_PORT)
    token = None if address.loopback and not os.environ.get(TOKEN_VARIABLE) else page_token()
    feed.guarded = token is not None
    listening = bind(address, option)
    address = ListenAddress(address.host, listening.getsockname()[1])
    from coordinator.results.page.uvicorn_server import PageThread

    thread = PageThread(feed, listening, address, None if token is None else Guard(token))
    thread.start()
    say(f"page: {page_url(address, token)}")
    if token is not None:
        may = ", and may pause and drain it" if commands else ""
        say(
            f"page: everybody with this address can see the run{may}; nothing is encrypted, so use it "
            "where you trust the network"
        )
    try:
        yield
    finally:
        thread.stop()


@contextmanager
def page_feed(text: str | None) -> Iterator[Feed | None]:
    """Serve the page of a run that begins; yields its feed, or None where no page is wanted."""
    if text is None:
        yield None
        return
    feed = Feed()
    with served(feed, text, stderr_line):
        try:
            yield feed
        except BaseException:
            feed.end("stopped", "The run was stopped; its terminal shows why, and how to continue.")
            raise


def stderr_line(line: str) -> None:
    """Write a line to the terminal."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def page_token() -> str:
    """Return the token that the user has set, or draw one.  Raises UsageError for a short one."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        return secrets.token_urlsafe(24)
    if len(token) < LEAST_TOKEN or not all(each.isascii() and (each.isalnum() or each in "-_.") for each in token):
        raise UsageError(f"{TOKEN_VARIABLE}: use at least {LEAST_TOKEN} of a-z, A-Z, 0-9, -, _ and .")
    return token


def page_url(address: ListenAddress, token: str | None) -> str:
    """Return the address that a user opens."""
    host = socket.gethostname() if address.host in UNSPECIFIED_HOSTS else address.shown_host
    return f"http://{host}:{address.port}/" + (f"?token={token}" if token else "")
