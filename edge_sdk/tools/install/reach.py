"""Whether the user of a service can reach what it runs: the permission bits of each folder on the way."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edge_sdk.errors import UsageError

if sys.platform != "win32":
    import pwd

_ACCESS_LIST = "system.posix_acl_access"
_READ, _ENTER = 0o4, 0o1


def check_reach(user: str, files: Iterable[Path]) -> None:
    """Raise UsageError that names the first folder or file which keeps a user from reading one of these files.

    What an access control list says is not judged, nor what this process itself may not see.
    """
    login = pwd.getpwnam(user)
    groups = {login.pw_gid, *os.getgrouplist(user, login.pw_gid)}
    for file in files:
        for path in _on_the_way(file):
            wanted = _ENTER if path.is_dir() else _READ
            if login.pw_uid != 0 and not may_use(path, wanted, login.pw_uid, groups):
                raise UsageError(
                    f"--user {user}: {path} is closed to this user, and the service needs {file}; open it, install "
                    "edge-sdk and the app in a folder of that user, or name another login"
                )


def _on_the_way(file: Path) -> list[Path]:
    """Return the folders above a file, and it; then those of what it points to."""
    found: dict[Path, None] = {}
    for path in (file.absolute(), file.resolve()):
        found |= dict.fromkeys([*reversed(path.parents), path])
    return list(found)


def may_use(path: Path, wanted: int, uid: int, groups: set[int]) -> bool:
    """Whether the permission bits of a path give a user these rights; wanted: as the bits of others."""
    try:
        known = path.stat()
    except OSError:  # this process does not see it; the service will tell
        return True
    with suppress(OSError):
        os.getxattr(path, _ACCESS_LIST)
        return True
    shift = 6 if known.st_uid == uid else 3 if known.st_gid in groups else 0
    return bool(stat.S_IMODE(known.st_mode) >> shift & wanted)
