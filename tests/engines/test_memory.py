"""Errors that say that there is no memory left, and what happens to them on their way out."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from typing import NoReturn

import pytest

from edge_sdk.errors import is_out_of_memory
from edge_sim.engines.memory import freed_memory_kept


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


IN_A_PROCESS = """
import ctypes
from edge_sim.engines.memory import freed_memory_kept, large_blocks_apart

NAMES = "arena ordblks smblks hblks mapped usmblks fsmblks used free keepcost".split()
Malloc = type("Malloc", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in NAMES]})
library = ctypes.CDLL(None)
library.mallinfo2.restype = Malloc

with freed_memory_kept():
    first = library.mallinfo2().mapped
    with large_blocks_apart():
        apart = [bytes(2**20) for _ in range(64)]
    second = library.mallinfo2().mapped
    together = [bytes(2**20) for _ in range(64)]
    third = library.mallinfo2().mapped
    print((second - first) // 2**20, (third - second) // 2**20)
"""
"""Glibc serves a block from free memory before it maps one, so this process must not have much."""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="glibc before 2.33, or another C library",
)
def test_large_blocks_are_mapped_apart_meanwhile() -> None:
    found = subprocess.run([sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, check=True)
    apart, together = map(int, found.stdout.split())
    assert apart >= 60
    assert together == 0
