"""Files and folders that only their owner may read, from the moment of their creation.

State, ledgers, traces, checkpoints and models hold private content, or the seed of the noise that protects it.  SQLite
gives the log and the shared memory beside a database the rights of the database itself.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import BinaryIO

FILE_MODE, FOLDER_MODE = 0o600, 0o700
OTHERS = 0o077
"""The rights of everybody but the owner."""


def make_private_folder(folder: Path) -> None:
    """Make a folder for its owner alone, unless it exists; missing ones above it get the usual rights.

    Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def create_private(path: Path) -> None:
    """Make an empty file for its owner alone, unless one with content exists.  Raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), FILE_MODE))
    if not path.stat().st_size:
        path.chmod(FILE_MODE)


def write_private(path: Path) -> BinaryIO:
    """Open a file for writing from its beginning; only its owner may read it, even if it existed before.

    Raises OSError.
    """
    create_private(path)
    path.chmod(FILE_MODE)
    return path.open("wb")


def exposed(*places: Path) -> str:
    """Return a line about files that other users may read, with the command that fixes it, or nothing.

    places: files, with what SQLite writes beside them, and folders, of which all files are looked at.
    """
    if os.name != "posix":
        return ""
    found = [path for place in places for path in _open_in(place)]
    if not found:
        return ""
    words = " ".join(shlex.quote(str(path)) for path in dict.fromkeys(found))
    return f"{found[0]}: other users of this machine may read it; mend it with: chmod -R go= {words}"


def _open_in(place: Path) -> list[Path]:
    """Return the paths to protect: the folder, if one of its files is exposed, or each exposed file."""
    if place.is_dir():
        return [place] if any(map(_is_open, place.rglob("*"))) else []
    return list(filter(_is_open, (place.with_name(place.name + suffix) for suffix in ("", "-wal", "-shm"))))


def _is_open(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:  # it does not exist, or no longer
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and bool(stat.S_IMODE(found.st_mode) & OTHERS)
