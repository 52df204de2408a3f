"""The memory of this process: its largest resident size (on POSIX only), and the return of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # and so nothing is told

MIB = 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt: how much may be free at the end of the heap, and from which size on a block is mapped
by itself and returned at once."""
_LARGEST_THRESHOLD_BYTES, _DEFAULT_THRESHOLD_BYTES = 32 * MIB, MIB // 8
"""What glibc raises the latter to at most as blocks are freed, and what both are at first."""


def peak_bytes() -> int:
    """Return the largest resident memory of this process since its start, in bytes; 0: unknown."""
    return 0 if resource is None else as_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


_REFUSALS = OSError, AttributeError, MemoryError
"""What a call of the C library raises where it is another library, or where there is no memory left for the call."""


def give_back() -> None:
    """Return freed memory to the system; glibc would keep free blocks between used ones for later use."""
    with contextlib.suppress(*_REFUSALS):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Map each large block by itself meanwhile: those that are freed later are returned, and leave no holes.

    The weights of a fleet's models are freed when they move elsewhere.  Their holes lie between what stays; they are
    too small for a model's state, and over the rounds small blocks would spread over all of them.  Does nothing with
    other C libraries.
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
    """Keep freed memory for later use meanwhile, and return it to the system in the end.

    In each round the models' states and frames of a fleet are freed and allocated anew.  By itself glibc returns blocks
    of that size at once, and the system fills each page of the next ones with zeros again.  Does nothing with other C
    libraries.
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
