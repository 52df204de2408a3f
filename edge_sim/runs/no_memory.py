"""Turn any library's out-of-memory error into a one-line RunFailed."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.errors import RunFailed, is_out_of_memory
from edge_sim.clock.checkpoint import Checkpoints, how_to_go_on
from edge_sim.engines.memory import MIB

_SPARE_BYTES = 4 * MIB
"""Address space, mapped but never written; released on failure, it leaves room to report the error."""


@contextmanager
def as_run_failed(out: Path | None) -> Iterator[None]:
    """Raise RunFailed with advice in place of an out-of-memory error.

    out: the run directory, if there is one.
    """
    try:
        with mmap.mmap(-1, _SPARE_BYTES):
            yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        remedy = "simulate fewer devices, in fewer processes ([run] processes) or with smaller mini-batches"
        on = how_to_go_on(Checkpoints(out / "checkpoint") if out else None)
        raise RunFailed(f"out of memory: {remedy}, or give it more, then {on}") from None
