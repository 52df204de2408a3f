"""Places for files that a user named; one that cannot be written is the user's mistake, unless the disk fails."""

from __future__ import annotations

import errno
from pathlib import Path

from edge_sdk.at_rest.private import make_private_folder
from edge_sdk.errors import StoreError, UsageError

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
