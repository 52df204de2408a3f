"""Memory of this process: how much was resident at most (POSIX; elsewhere nobody knows), and giving some back."""

from __future__ import annotations

import contextlib
import ctypes
import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # and so nothing is told

MIB = 2**20


def peak_bytes() -> int:
    """Return the largest resident memory of this process since its start, in bytes; 0: unknown."""
    return 0 if resource is None else as_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def give_back() -> None:
    """Return what was freed to the system: glibc keeps holes between what is left, and counts on needing them again."""
    with contextlib.suppress(OSError, AttributeError):  # of other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def as_bytes(maxrss: int) -> int:
    """What getrusage and wait4 call ru_maxrss: bytes on macOS, KiB elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024
