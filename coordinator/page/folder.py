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
        raise UsageError(f"{folder}: holds a comparison; give the folder of one of its runs")
    if is_running(folder):
        return progress_state(_progress(folder, read_running(folder)), str(folder)), True
    return finished_state(read_run(folder), str(folder)), False


def _progress(folder: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "round" not in found:
        raise UsageError(f"{folder}: a run is being written here, and nothing has happened yet; try again in a moment")
    return found
