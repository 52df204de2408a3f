"""The memory of this process: its largest resident size (on POSIX only), and the return of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # sizes are then unknown

MIB = 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt: how much may be free at the end of the heap (M_TRIM_THRESHOLD), and from which size a
block has its own mapping, returned at once when freed (M_MMAP_THRESHOLD)."""
_LARGEST_THRESHOLD_BYTES, _DEFAULT_THRESHOLD_BYTES = 32 * MIB, MIB // 8
"""The maximum to which glibc raises the latter as blocks are freed, and the initial value of both."""


def peak_bytes() -> int:
    """Return the largest resident memory of this process since its start, in bytes, or 0 if unknown."""
    return 0 if resource is None else as_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


_REFUSALS = OSError, AttributeError, MemoryError
"""Raised by a call of the C library if it is another library, or if memory is exhausted."""


def give_back() -> None:
    """Return freed memory to the system; glibc keeps free blocks between used ones."""
    with contextlib.suppress(*_REFUSALS):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map each large block separately inside the context: when freed later, it is returned and leaves no hole.

    The weights of a fleet's models are freed when they move elsewhere.  The holes between remaining blocks would be too
    small for a model's state, and small blocks would spread over them.  A no-op with other C libraries.
    """
    _map_from(_DEFAULT_THRESHOLD_BYTES)
    try:
        yield
    finally:
        _map_from(_LARGEST_THRESHOLD_BYTES)


def _map_from(size_bytes: int) -> None:
    with contextlib.suppress(*_REFUSALS):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, size_bytes)


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for reuse inside the context, and return it to the system at exit.

    Each round frees and allocates the models' states and frames of a fleet again.  By default glibc returns blocks of
    that size at once, and the system then zeroes every page of the next ones.  A no-op with other C libraries.
    """
    _map_from(_LARGEST_THRESHOLD_BYTES)
    with contextlib.suppress(*_REFUSALS):
        ctypes.CDLL(None).mallopt(_TRIM_THRESHOLD, 2**30)
    try:
        yield
    finally:
        with contextlib.suppress(*_REFUSALS):
            ctypes.CDLL(None).mallopt(_TRIM_THRESHOLD, _DEFAULT_THRESHOLD_BYTES)
        give_back()


def as_bytes(maxrss: int) -> int:
    """Convert ru_maxrss of getrusage and wait4 to bytes: it counts bytes on macOS and KiB elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024
