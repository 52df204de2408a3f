"""Devices that lie: a function that replaces the knowledge of their uploads.

`byzantine = "MODULE:FUNCTION"` in a [[fleet]] row names one; FUNCTION(knowledge, rng) -> knowledge is given the
payloads of an upload by role, as the device's half of the method made them, and a generator that follows from the
seed, the device, the round and the exchange.  What it returns must be legal (the same payload kinds, shapes and
classes, finite numbers): a device whose frame is not legal is refused by the protocol, and there is nothing to study.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.agent import Agent
from edge_sdk.errors import UsageError
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import Assign

Knowledge: TypeAlias = Mapping[str, Payload]
Tamper: TypeAlias = Callable[[Knowledge, np.random.Generator], Knowledge]


def load(name: str) -> Tamper:
    """The function that a name stands for; the working directory counts, as for a script that lies there.

    Raises UsageError, too, for one that cannot be called with what a Tamper is given: it is not called to find out.
    """
    module, colon, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        raise UsageError(f"{name!r} does not import: {one_line(str(error))}") from error
    if not callable(found):
        raise UsageError(f"{name!r}: expected MODULE:FUNCTION, such as edge_sim.byzantine:flip_signs")
    if not _takes_knowledge(found):
        raise UsageError(f"{name!r}: expected a function of your own, FUNCTION(knowledge, rng) -> knowledge")
    tamper: Tamper = found
    return tamper


def _takes_knowledge(found: Callable[..., object]) -> bool:
    """Whether it can be called as FUNCTION(knowledge, rng); what Python itself brings is never meant."""
    if inspect.isbuiltin(found) or inspect.isclass(found):
        return False
    try:
        inspect.signature(found).bind(None, None)
    except (TypeError, ValueError):  # it takes something else; or says nothing of what it takes
        return False
    return True


def agent_for(name: str | None, federation: str, seed: int) -> Callable[..., Agent]:
    """What makes a device's agent: one that lies where a function is named."""
    if name is None:
        return Agent
    return partial(LyingAgent, lie=Lie(name), seed=[seed, *federation.encode()])


class Lie:
    """A named function, and one line for whatever is wrong with what it does."""

    def __init__(self, name: str) -> None:
        self._name, self._tamper = name, load(name)

    def __call__(self, knowledge: Knowledge, rng: np.random.Generator) -> Knowledge:
        """What the function returns.  Raises UsageError where it raises, or returns no knowledge of that make."""
        try:
            found = self._tamper(knowledge, rng)
        except (Exception, SystemExit) as error:  # a function of the user's may raise anything
            words = one_line(f"{type(error).__name__}: {error}")
            raise UsageError(f"fleet.byzantine: {self._name!r} raised {words}") from error
        if wrong := _unlike(found, knowledge):
            raise UsageError(f"fleet.byzantine: {self._name!r} must return knowledge like what it was given: {wrong}")
        return found


class LyingAgent(Agent):
    """An agent whose uploads are tampered with before they are stored and sent."""

    def __init__(self, *, lie: Lie, seed: Sequence[int], **honest: Any) -> None:
        self._lie, self._seed = lie, seed
        super().__init__(**honest)

    def knowledge_to_upload(self, assign: Assign, knowledge: Knowledge) -> Knowledge:
        """See Participant."""
        if not knowledge:
            return knowledge
        return self._lie(knowledge, np.random.default_rng([*self._seed, assign.round, assign.exchange]))


def flip_signs(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Every number with the opposite sign."""
    return _changed(knowledge, lambda values: -values)


def noise(knowledge: Knowledge, rng: np.random.Generator) -> Knowledge:
    """Gaussian noise in place of every number, of the standard deviation of the numbers."""
    return _changed(knowledge, lambda values: rng.normal(0.0, float(values.std()) or 1.0, values.shape))


def magnify(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Every number ten times as large."""
    return _changed(knowledge, lambda values: 10.0 * values)


def _changed(knowledge: Knowledge, change: Callable[[Any], Any]) -> Knowledge:
    """With every array of floats changed."""
    found = {}
    for role, payload in knowledge.items():
        arrays = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
        floats = {
            name: change(values).astype(values.dtype)
            for name, values in arrays.items()
            if isinstance(values, np.ndarray) and values.dtype.kind == "f"
        }
        found[role] = dataclasses.replace(payload, **floats)
    return found


def _unlike(found: object, knowledge: Knowledge) -> str:
    """How what a function returned differs in its make from what it was given; empty: it does not.

    How many classes or rows it speaks of, and which numbers, is its own affair, and the protocol's to judge.
    """
    if not isinstance(found, Mapping) or found.keys() != knowledge.keys():
        roles = ", ".join(knowledge)
        return f"expected a payload for each of {roles}, found {type(found).__name__}"
    for role, payload in knowledge.items():
        if type(found[role]) is not type(payload):
            return f"{role}: expected {type(payload).__name__}, found {type(found[role]).__name__}"
        for field in dataclasses.fields(payload):
            expected, value = (_make(getattr(each, field.name)) for each in (payload, found[role]))
            if value != expected:
                return f"{role}.{field.name}: expected {expected}, found {value}"
    return ""


def _make(value: object) -> str:
    """Of a payload's field: its type, and of an array the kind and the number of axes, too."""
    return f"{value.ndim}-d {value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
