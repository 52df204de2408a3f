"""The command `edge-sdk page`."""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import suppress
from pathlib import Path

from coordinator.page.feed import EVERY_S, Feed
from coordinator.page.folder import folder_state
from coordinator.page.serving import served, stderr_line
from coordinator.record.units import human_seconds
from coordinator.report.progress_file import NAME
from edge_sdk.errors import UsageError


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
    """Say how old the newest figures are: nobody can see from outside whether a run goes on or was interrupted."""
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
