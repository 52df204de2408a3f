"""What one agent of a process holds alone: a model that two would train, a store whose samples two would release."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Holder:
    agent: weakref.ref[object]
    process: int
    """A forked child has copies of what its parent's agents hold."""
    name: str


_holders: dict[int, _Holder] = {}
"""By the identity of an object, which its holder keeps alive."""
_changing = threading.Lock()


def hold_alone(agent: object, name: str, parts: Mapping[str, object]) -> None:
    """Let an agent hold objects until `let_go`, or until it is collected; name: what others are told of it.

    parts: by the argument that gave them.  Raises UsageError if another agent of this process holds one; then this one
    holds none of them.
    """
    if _is_held(agent, parts):
        gc.collect()  # an agent that nobody has any more lives on in a circle of references
    with _changing:
        for part, each in parts.items():
            other = _other_holder(agent, each)
            if other is not None:
                raise UsageError(
                    f"{part}: {other.name} in this process has the same {type(each).__name__}: give each Agent one of "
                    "its own (a factory makes one at each call), or stop() that agent first"
                )
        for each in parts.values():
            _holders[id(each)] = _Holder(weakref.ref(agent), os.getpid(), name)


def let_go(agent: object) -> None:
    """Let others hold what this agent holds, and forget agents that are gone."""
    with _changing:
        for key, holder in list(_holders.items()):
            if holder.agent() in (None, agent):
                del _holders[key]


def _is_held(agent: object, parts: Mapping[str, object]) -> bool:
    return any(_other_holder(agent, each) is not None for each in parts.values())


def _other_holder(agent: object, each: object) -> _Holder | None:
    holder = _holders.get(id(each))
    gone = holder is None or holder.agent() in (None, agent) or holder.process != os.getpid()
    return None if gone else holder
