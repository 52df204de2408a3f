"""What is looked at before the first cell runs: no cell is computed for a result that has no place."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.papers.running.cells import Cell
from edge_sdk.errors import UsageError
from edge_sim.bench import vibration


def find_data(ahead: Iterable[Cell]) -> None:
    """Raise UsageError where the data of a cell are not there; those that are made here are not looked for."""
    files = {cell.data for cell in ahead if cell.data is not None and cell.data.name != vibration.NAME}
    if missing := sorted(str(path) for path in files if not path.is_file()):
        raise UsageError(f"{', '.join(missing)}: no such data file; put it there, or let EDGE_DATA name its folder")


def find_room(page: Path, folders: Iterable[Path]) -> None:
    """Raise UsageError where the page or a file in one of these folders cannot be written; nothing is made."""
    if page.is_dir():
        raise UsageError(f"{page}: is a folder, and the page is to stand there; move it out of the way")
    for folder in sorted({page.parent, *folders}):
        _write_into(folder)


def _write_into(folder: Path) -> None:
    """Write a nameless file into a folder, or into the nearest one above it that is there."""
    place = folder
    try:
        place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UsageError(f"{place}: cannot be written to ({error.strerror}); free or change the place") from None
