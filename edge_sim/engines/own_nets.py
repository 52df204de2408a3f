"""What a net that the user brings raises: it ends a simulation with one line that names the net.

A board would withhold its round and go on, for its owner to mend the net.  A simulation ends: all devices with that net
would withhold, round after round.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from edge_sdk.errors import EdgeError, ModelError
from edge_sdk.protocol.leaves import one_line
from edge_sim.engines.memory import is_out_of_memory

log = logging.getLogger(__name__)

_RUNTIMES = ("torch.nn.modules.", "torch.autograd", "sklearn.", "onnxruntime.")
"""Modules that compute a net: an error that comes through them is the net's, as its samples are checked before."""
OURS = frozenset({"edge_sdk", "edge_sim", "coordinator"})
"""The packages of this project."""


@contextmanager
def as_model_error(brought: Sequence[str], when: str = "") -> Iterator[None]:
    """Turn what a user's own net raises inside into a ModelError of one line; other errors stay as they are.

    brought: MODULE:FACTORY of the nets of the user that compute inside.  when: words for the line.
    """
    try:
        yield
    except Exception as error:
        if not brought or isinstance(error, EdgeError) or is_out_of_memory(error):
            raise
        place = _place(error.__traceback__, {_root(name) for name in brought} - OURS)
        if not place:
            raise  # a mistake of our own code, whose traceback must be seen
        log.debug("what a net raised:", exc_info=error)
        told = one_line(f"{type(error).__name__}: {error}")
        raise ModelError(
            f"model {' or '.join(brought)}{when}: {told} ({place}); mend the net: "
            "edge-sdk -v simulate --engine exact shows the traceback"
        ) from error


def _place(raised: TracebackType | None, roots: set[str]) -> str:
    """Return FILE:LINE where a net raised, in its own module if the error came through it; empty: no net raised it.

    roots: the top-level packages of the nets' modules.
    """
    own, of_runtime, last = "", False, ""
    for frame, line in traceback.walk_tb(raised):
        module = frame.f_globals.get("__name__", "")
        last = f"{Path(frame.f_code.co_filename).name}:{line}"
        of_runtime = of_runtime or module.startswith(_RUNTIMES)
        own = last if _root(module) in roots else own
    return own or (last if of_runtime else "")


def _root(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]
