"""The command `edge-sdk page`."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinator.record.units import human_seconds
from coordinator.results.comparison.compare_files import is_comparison
from coordinator.results.page.feed import EVERY_S, Feed
from coordinator.results.page.serving import served, stderr_line
from coordinator.results.page.values import PageState, finished_state, progress_state
from coordinator.results.report.progress_file import NAME, is_running, read_running
from coordinator.results.report.run_files import read_run
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
