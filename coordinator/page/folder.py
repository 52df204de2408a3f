"""The page of a run folder: of a finished run once, of one that goes on in another process as its files tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.page.values import PageState, finished_state, progress_state
from coordinator.report.compare_files import is_comparison
from coordinator.report.progress_file import is_running, read_running
from coordinator.report.run_files import read_run
from edge_sdk.errors import UsageError


def folder_state(folder: Path) -> tuple[PageState, bool]:
    """Return the state of the run in a folder, and whether the run goes on.

    Raises UsageError, in one line, where this is no run folder, or one of another version.
    """
    if is_comparison(folder):
        raise UsageError(f"{folder}: holds a comparison; give the folder of one of its runs{_runs_in(folder)}")
    if is_running(folder):
        return progress_state(_progress(folder, read_running(folder)), str(folder)), True
    if not (folder / "summary.json").exists() and (runs := _runs_in(folder)):
        raise UsageError(f"{folder}: holds several runs; give the folder of one of them{runs}")
    return finished_state(read_run(folder), str(folder)), False


def _runs_in(folder: Path) -> str:
    """Name the first runs in folders of this one, such as a comparison that goes on; empty: there is none."""
    names = ("summary.json", "progress.json")
    found = sorted({str(path.parent) for name in names for path in folder.glob(f"*/**/{name}")})
    return f", such as {found[0]}" if found else ""


def _progress(folder: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "round" not in found:
        raise UsageError(f"{folder}: a run is being written here, and nothing has happened yet; try again in a moment")
    return found
