"""Private files that are replaced atomically and survive a power cut."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edge_sdk.at_rest.private import write_private


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
