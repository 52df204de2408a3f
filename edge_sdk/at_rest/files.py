"""Files and folders that only their owner may read, and that survive a power cut; damaged ones are set aside.

State, ledgers, traces, checkpoints and models hold private content, or the seed of the noise that protects it.  SQLite
gives the log and the shared memory beside a database the rights of the database itself.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from edge_sdk.errors import Damaged, StoreError, UsageError

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
    return f"{found[0]}: other users of this machine may read it; repair this with: chmod -R go= {words}"


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


def replace_durably(path: Path, content: bytes) -> None:
    """Write a whole file at once, durable on return: a power cut leaves the old content or the new one.

    Only its owner may read it.  Raises OSError; then the old content is still there.
    """
    new = path.with_name(f"{path.name}.new")
    write_synced(new, content)
    try:
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file whose content is durable on return, and whose name is durable after the next `sync_folder`.

    Raises OSError, and leaves no file behind.
    """
    try:
        with write_private(path) as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)})
"""Errors that another name on the same disk would not avoid."""


def make_folder(folder: Path, named: str, *, private: bool = False) -> None:
    """Make a folder that a user named, if it is missing.  named: how that was done, such as `--out runs/demo`.

    private: whether it is for its owner alone, as one for keys is.  Raises UsageError, or StoreError if the disk fails.
    """
    try:
        if private:
            make_private_folder(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"{named}: cannot be made a folder ({error.strerror}); give another one"
        raise unwritable(error, fault) from None


def unwritable(error: OSError, text: str) -> UsageError | StoreError:
    """Return what to raise for a place that a user named and that cannot be written; text: the line about it."""
    return StoreError(text) if error.errno in _OF_THE_DISK else UsageError(text)


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
