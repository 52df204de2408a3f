"""Errors of a net or method that the user brings end a simulation or a coordinator with a line that names the code.

A board would withhold its round and continue until its owner repairs the net.  A simulation ends, because all devices
with that net would withhold in every round.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from edge_sdk.errors import EdgeError, ModelError, RunFailed, is_out_of_memory
from edge_sdk.methods.contract.registry import METHODS
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.leaves import one_line

log = logging.getLogger(__name__)

_RUNTIMES = ("torch.nn.modules.", "torch.autograd", "sklearn.", "onnxruntime.")
"""Modules that compute a net: an error that comes through them is the net's, as its samples are checked before."""
IN_SIMULATION = "; edge-sdk -v simulate --engine exact shows the traceback"
"""A simulation's addition to the line."""
OURS = frozenset({"edge_sdk", "edge_sim", "coordinator"})
"""The packages of this project."""


@contextmanager
def as_model_error(brought: Sequence[str], when: str = "") -> Iterator[None]:
    """Convert errors of a user's own net in the `with` block, as `model_error` does."""
    try:
        yield
    except (Exception, SystemExit) as error:
        found = model_error(error, brought, when)
        if found is error:
            raise
        raise found from error


def model_error(error: Exception | SystemExit, brought: Sequence[str], when: str = "") -> Exception | SystemExit:
    """Convert an error of a user's own net to a ModelError of one line; return other errors unchanged.

    brought: MODULE:FACTORY of the nets of the user that computed.  when: words for the line.
    """
    if not brought or isinstance(error, EdgeError) or is_out_of_memory(error):
        return error
    place = _place(error.__traceback__, {_root(name) for name in brought} - OURS)
    if not place:
        return error  # a bug in our own code, which needs its traceback
    found = ModelError(f"model {' or '.join(brought)}{when}: {_told(error, place)}; fix the net{IN_SIMULATION}")
    found.__cause__ = error
    return found


@contextmanager
def as_method_error(method: str, then: str = IN_SIMULATION) -> Iterator[None]:
    """Convert errors of another package's method to a RunFailed of one line; other errors stay unchanged.

    method: its name.  then: the next step after a repair.  An error counts as the method's if it passed through its
    package.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, EdgeError) or is_out_of_memory(error) or registry.is_own(METHODS, method):
            raise
        target = registry.value(METHODS, method)
        place = _place(error.__traceback__, {_root(target)} - OURS, runtimes=())
        if not place:
            raise
        raise RunFailed(f"method {method} ({target}): {_told(error, place)}; fix the method{then}") from error


def _told(error: BaseException, place: str) -> str:
    log.debug("what it raised:", exc_info=error)
    return f"{one_line(f'{type(error).__name__}: {error}')} ({place})"


def _place(raised: TracebackType | None, roots: set[str], runtimes: tuple[str, ...] = _RUNTIMES) -> str:
    """Return FILE:LINE where the user's code raised, or empty if other code did.

    roots: the top-level packages of that code; the last line of it counts.  runtimes: modules that run it: the last
    line of all counts if the error came through one of them alone.
    """
    own, of_runtime, last = "", False, ""
    for frame, line in traceback.walk_tb(raised):
        module = frame.f_globals.get("__name__", "")
        last = f"{Path(frame.f_code.co_filename).name}:{line}"
        of_runtime = of_runtime or module.startswith(runtimes)
        own = last if _root(module) in roots else own
    return own or (last if of_runtime else "")


def _root(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]
