"""Objects that only one agent of a process may use at a time, such as a model or a sample store."""

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
    """The process id: after a fork the child owns copies of the parent's objects, so the entry does not bind it."""
    name: str


_holders: dict[int, _Holder] = {}
"""By `id` of an object; ids stay valid because the holder keeps its objects alive."""
_changing = threading.Lock()


def hold_alone(agent: object, name: str, parts: Mapping[str, object]) -> None:
    """Reserve objects for an agent until `let_go`, or until it is collected; name: the agent's name in errors.

    parts: the objects by argument name.  Raises UsageError, and reserves none, if another agent of this process holds
    one of them.
    """
    if _is_held(agent, parts):
        gc.collect()  # an unused agent survives in a reference cycle until it is collected
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
    """Release this agent's objects, and those of agents that no longer exist."""
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
