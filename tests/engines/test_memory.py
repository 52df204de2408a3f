"""Errors that say that there is no memory left, and what happens to them on their way out."""

from __future__ import annotations

import ctypes
import errno
import platform
from typing import NoReturn

import numpy as np
import pytest

from edge_sim.engines.memory import freed_memory_kept, is_out_of_memory, large_blocks_apart


@pytest.mark.parametrize(
    ("error", "without"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),  # of mmap, and of a process that is started
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("shapes clash"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_say_that_there_is_no_memory(error: Exception, *, without: bool) -> None:
    assert is_out_of_memory(error) == without


def test_an_error_is_not_hidden_where_freed_memory_cannot_be_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise MemoryError("of the C library")

    @freed_memory_kept()
    def run() -> None:
        monkeypatch.setattr(ctypes, "CDLL", full)
        raise MemoryError("of the run")

    with pytest.raises(MemoryError, match="of the run"):
        run()


class Malloc(ctypes.Structure):
    """What mallinfo2 of glibc returns."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "mapped_bytes")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "used_bytes", "free_bytes", "keepcost")),
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_blocks_that_are_mapped_apart_leave_no_holes() -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("glibc before 2.33 does not tell of its blocks")
    library.mallinfo2.restype = Malloc
    with freed_memory_kept():
        before = library.mallinfo2()
        with large_blocks_apart():
            blocks = [np.empty(2**20, np.uint8) for _ in range(8)]
        apart = library.mallinfo2()
        together = [np.empty(2**20, np.uint8) for _ in range(8)]
        after = library.mallinfo2()
        assert apart.mapped_bytes - before.mapped_bytes >= 8 * 2**20
        assert after.mapped_bytes == apart.mapped_bytes
        del blocks, together
