"""The memory of this process: its largest resident size (on POSIX only), and the return of freed memory."""

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
    """Return freed memory to the system; glibc would keep free blocks between used ones for later use."""
    with contextlib.suppress(OSError, AttributeError):  # of other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def as_bytes(maxrss: int) -> int:
    """Convert ru_maxrss of getrusage and wait4 to bytes: it counts bytes on macOS and KiB elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024
