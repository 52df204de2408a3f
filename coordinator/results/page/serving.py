"""The page of a run in this process, opened before the run and closed after it; and the command `edge-sdk page`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coordinator.address import ListenAddress, bind, parse_address
from coordinator.record.units import human_seconds
from coordinator.results.comparison.compare_files import is_comparison
from coordinator.results.page.feed import EVERY_S, Feed
from coordinator.results.page.guard import LEAST_TOKEN, TOKEN_VARIABLE, Guard
from coordinator.results.page.values import PageState, finished_state, progress_state
from coordinator.results.report.progress_file import NAME, is_running, read_running
from coordinator.results.report.run_files import read_run
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


def command(args: argparse.Namespace) -> int:
    """Show the run of a folder in a browser until Ctrl-C."""
    state, goes_on = folder_state(args.folder)
    feed = Feed(state)
    if goes_on:
        stderr_line(f"{args.folder}: {_news(args.folder)}; the page follows what it writes (--page shows more)")
    with served(feed, args.at, stderr_line, option="--at", commands=False):
        stderr_line("Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            _follow(args.folder, feed, goes_on=goes_on)
    return 0


def _news(folder: Path) -> str:
    """Say how old the newest figures are: files do not show whether a run continues or was interrupted."""
    path = folder / NAME
    if not path.exists():
        return "this run has not ended"
    return (
        f"this run has not ended, and its figures are {human_seconds(max(0.0, time.time() - path.stat().st_mtime))} old"
    )


def _follow(folder: Path, feed: Feed, *, goes_on: bool) -> None:
    """Publish what the files of a run say, until it is over; then wait for Ctrl-C."""
    pause = threading.Event()
    while goes_on:
        pause.wait(EVERY_S)
        with suppress(UsageError):  # a file that is being replaced reads the next time
            state, goes_on = folder_state(folder)
            feed.publish(state)
    pause.wait()


# The page of a run folder: of a finished run once, of a run in another process as often as its files change.


def folder_state(folder: Path) -> tuple[PageState, bool]:
    """Return the state of the run in a folder, and whether the run continues.

    Raises UsageError, in one line, for anything else than a run folder of this version.
    """
    if is_comparison(folder):
        raise UsageError(f"{folder}: holds a comparison; give the folder of one of its runs{_runs_in(folder)}")
    if is_running(folder):
        return progress_state(_progress(folder, read_running(folder)), str(folder)), True
    if not (folder / "summary.json").exists() and (runs := _runs_in(folder)):
        raise UsageError(f"{folder}: holds several runs; give the folder of one of them{runs}")
    return finished_state(read_run(folder), str(folder)), False


def _runs_in(folder: Path) -> str:
    """Name the first runs in folders of this one, such as a running comparison, or return an empty text."""
    names = ("summary.json", "progress.json")
    found = sorted({str(path.parent) for name in names for path in folder.glob(f"*/**/{name}")})
    return f", such as {found[0]}" if found else ""


def _progress(folder: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "round" not in found:
        raise UsageError(f"{folder}: a run is being written here, and nothing has happened yet; try again in a moment")
    return found
