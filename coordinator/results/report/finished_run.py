"""A run folder whose run was completed: resuming it reports that, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.results.report.run_files import read_run
from coordinator.results.report.text_files import read_text


def holds_finished_run(folder: Path) -> bool:
    """Whether a folder holds the results of a run that was completed.  Raises UsageError where they do not read."""
    return (folder / "summary.json").exists() and read_run(folder).completed


def tell_finished(folder: Path, *, as_json: bool) -> None:
    """Say in one line that the run in a folder is finished.  as_json: also print its summary."""
    sys.stderr.write(f"{folder}: the run is finished, there is nothing to continue\n")
    if as_json:
        sys.stdout.write(read_text(folder / "summary.json"))
