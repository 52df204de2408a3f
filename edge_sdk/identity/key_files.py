"""Files of an identity folder: secrets that only their owner reads, and counters that survive a power cut."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from edge_sdk.at_rest.files import FILE_MODE, OTHERS, make_private_folder, sync_folder
from edge_sdk.durable import as_store_error, file_lock
from edge_sdk.errors import InUse, UsageError

PRIVATE, PUBLIC = FILE_MODE, 0o644
LOCK_S = 10.0
"""The longest wait for another process that changes the same files."""


def write_whole(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Write a whole file, durably: after a power cut there is the old file or the new one.  Raises StoreError."""
    with as_store_error(path):
        make_private_folder(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_secret(path: Path) -> bytes:
    """Read a file that only its owner may read.  Raises UsageError if others can, or if it cannot be read."""
    content = read_part(path)
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & OTHERS:
        raise UsageError(
            f"{path} can be read by other users of this machine: chmod 600 {shlex.quote(str(path))}, and enrol again "
            "if one of them may have copied it"
        )
    return content


def read_part(path: Path) -> bytes:
    """Read a file of an identity folder.  Raises UsageError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder's files against other processes during a change; a process that dies releases the lock."""
    try:
        lock = file_lock(folder / ".lock", LOCK_S)
    except InUse:
        text = f"{folder}: another process has been changing it for {LOCK_S:g} s; end that one, or wait for it"
        raise InUse(text) from None
    with closing(lock):
        yield


@contextmanager
def used_alone(folder: Path, name: str, in_use: str) -> Iterator[None]:
    """Lock the resource `name` on this machine; a process that dies releases the lock.

    Raises UsageError with the text `in_use` if another process holds it.
    """
    try:
        lock = file_lock(folder / f".{name}.lock")
    except InUse:
        raise UsageError(in_use) from None
    with closing(lock):
        yield


def read_counter(path: Path) -> int:
    """Return the number in a file, or 0 without a file.  Raises UsageError for other contents.

    A number without a checksum is accepted unchecked.
    """
    if not path.exists():
        return 0
    digits, mark, _ = text = read_part(path).strip().partition(b" =")
    if not digits.isdigit() or (mark and b"".join(text) != counter_text(int(digits)).strip()):
        raise UsageError(
            f"{path} is damaged: enrol again; if it is of a lab, copy it back from a backup, and run edge-sdk lab "
            "restored DIR"
        )
    return int(digits)


def counter_text(number: int) -> bytes:
    """Return the contents of a counter's file: the number and its checksum."""
    return b"%d =%08x\n" % (number, zlib.crc32(b"%d" % number))


def raise_counter(path: Path, least: int = 0) -> int:
    """Increment the number in a file, to at least `least`, durably; returns it."""
    with locked(path.parent):
        number = max(read_counter(path) + 1, least)
        write_whole(path, counter_text(number), PRIVATE)
    return number
