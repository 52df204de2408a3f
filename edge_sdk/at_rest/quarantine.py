"""Sets damaged files aside, so that their owner can restart and examine them later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from edge_sdk.at_rest.files import exposed, sync_folder
from edge_sdk.errors import Damaged, StoreError

T = TypeVar("T")
_BESIDE = ("", "-wal", "-shm", "-journal")
"""SQLite's suffixes of a database's name; all are renamed together, so that the database can still be opened."""


def set_aside(path: Path) -> Path:
    """Rename a file or a folder to NAME.damaged-1, or the first number that is free; returns where it is now.

    Raises StoreError.
    """
    numbered = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(
        each for each in numbered if not any(each.with_name(each.name + suffix).exists() for suffix in _BESIDE)
    )
    try:
        for suffix in _BESIDE:
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be set aside ({error.strerror}); check the folder's rights") from error
    return aside


def opened_or_anew(
    open_it: Callable[[], T], path: Path, *, quarantine: bool, tell: Callable[[str], None], private: Sequence[Path] = ()
) -> T:
    """Open the file or folder at a path; if it is damaged and `quarantine` is given, set it aside and create a new one.

    tell: called with one line, also if other users may read the file, or one of `private`, files and folders beside
    it.  Raises Damaged without `quarantine`.
    """
    if line := exposed(*private, path):
        tell(line)
    try:
        return open_it()
    except Damaged as damage:
        if not quarantine:
            raise
        tell(f"{damage.short}; it is now {set_aside(path)}")
        return open_it()
