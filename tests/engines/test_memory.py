"""Errors that say that there is no memory left, and what happens to them on their way out."""

from __future__ import annotations

import ctypes
import errno
from typing import NoReturn

import pytest

from edge_sim.engines.memory import freed_memory_kept, is_out_of_memory


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
