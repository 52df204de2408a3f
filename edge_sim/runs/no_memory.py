"""A run without memory ends with an error of one line, whichever library found that there is none."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.errors import RunFailed, is_out_of_memory
from edge_sim.clock.checkpoint import Checkpoints, how_to_go_on
from edge_sim.engines.memory import MIB

_SPARE_BYTES = 4 * MIB
"""Mapped and never written, so that it takes no memory; given back, it leaves room to tell what happened."""


@contextmanager
def as_run_failed(out: Path | None) -> Iterator[None]:
    """Raise RunFailed, with what to do, in place of an error that says that there is no memory left.

    out: the run directory; None: there is none.
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
