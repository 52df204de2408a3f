"""How much memory this process has had resident at most (POSIX; elsewhere nobody knows)."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # and so nothing is told

MIB = 2**20


def peak_bytes() -> int:
    """Of this process since it began, which may be before this run; 0: unknown."""
    return 0 if resource is None else as_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def as_bytes(maxrss: int) -> int:
    """What getrusage and wait4 call ru_maxrss: bytes on macOS, KiB elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024
