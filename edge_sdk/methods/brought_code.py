"""What a net or a method that the user brings raises: it ends a simulation or a coordinator with a line that names it.

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

from edge_sdk.errors import EdgeError, ModelError, RunFailed, is_out_of_memory
from edge_sdk.methods.registry import METHODS
from edge_sdk.protocol import registry
from edge_sdk.protocol.leaves import one_line

log = logging.getLogger(__name__)

_RUNTIMES = ("torch.nn.modules.", "torch.autograd", "sklearn.", "onnxruntime.")
"""Modules that compute a net: an error that comes through them is the net's, as its samples are checked before."""
IN_SIMULATION = "; edge-sdk -v simulate --engine exact shows the traceback"
"""What a simulation adds to the line."""
OURS = frozenset({"edge_sdk", "edge_sim", "coordinator"})
"""The packages of this project."""


@contextmanager
def as_model_error(brought: Sequence[str], when: str = "") -> Iterator[None]:
    """Raise what a user's own net raises inside as `model_error` returns it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        told = model_error(error, brought, when)
        if told is error:
            raise
        raise told from error


def model_error(error: Exception | SystemExit, brought: Sequence[str], when: str = "") -> Exception | SystemExit:
    """Return what a user's own net raised as a ModelError of one line; other errors stay as they are.

    brought: MODULE:FACTORY of the nets of the user that computed.  when: words for the line.
    """
    if not brought or isinstance(error, EdgeError) or is_out_of_memory(error):
        return error
    place = _place(error.__traceback__, {_root(name) for name in brought} - OURS)
    if not place:
        return error  # a mistake of our own code, whose traceback must be seen
    told = ModelError(f"model {' or '.join(brought)}{when}: {_told(error, place)}; mend the net{IN_SIMULATION}")
    told.__cause__ = error
    return told


@contextmanager
def as_method_error(method: str, then: str = IN_SIMULATION) -> Iterator[None]:
    """Turn what a method of another package raises inside into a RunFailed of one line; other errors stay as they are.

    method: its name.  then: what to do once it is mended.  An error counts as the method's if it came through its
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
        raise RunFailed(f"method {method} ({target}): {_told(error, place)}; mend the method{then}") from error


def _told(error: BaseException, place: str) -> str:
    log.debug("what it raised:", exc_info=error)
    return f"{one_line(f'{type(error).__name__}: {error}')} ({place})"


def _place(raised: TracebackType | None, roots: set[str], runtimes: tuple[str, ...] = _RUNTIMES) -> str:
    """Return FILE:LINE where the user's code raised; empty: it did not.

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
