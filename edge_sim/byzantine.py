"""Devices that lie: a function that replaces the knowledge of their uploads.

`byzantine = "MODULE:FUNCTION"` in a [[fleet]] row names one; FUNCTION(knowledge, rng) -> knowledge is given the
payloads of an upload by role, as the device's half of the method made them, and a generator that follows from the
seed, the device, the round and the exchange.  What it returns must be legal (the same payload kinds, shapes and
classes, finite numbers): a device whose frame is not legal is refused by the protocol, and there is nothing to study.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.agent import Agent
from edge_sdk.errors import UsageError
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign

Knowledge: TypeAlias = Mapping[str, Payload]
Tamper: TypeAlias = Callable[[Knowledge, np.random.Generator], Knowledge]


def load(name: str) -> Tamper:
    """The function that a name stands for; the working directory counts, as for a script that lies there.

    Raises UsageError.
    """
    module, colon, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{name!r} does not import: {error}") from error
    if not callable(found):
        raise UsageError(f"{name!r}: expected MODULE:FUNCTION, such as edge_sim.byzantine:flip_signs")
    tamper: Tamper = found
    return tamper


def agent_for(name: str | None, federation: str, seed: int) -> Callable[..., Agent]:
    """What makes a device's agent: one that lies where a function is named."""
    if name is None:
        return Agent
    return partial(LyingAgent, tamper=load(name), seed=[seed, *federation.encode()])


class LyingAgent(Agent):
    """An agent whose uploads are tampered with before they are stored and sent."""

    def __init__(self, *, tamper: Tamper, seed: Sequence[int], **honest: Any) -> None:
        self._tamper, self._seed = tamper, seed
        super().__init__(**honest)

    def answer(self, assign: Assign, knowledge: Knowledge) -> Knowledge:
        """See Participant."""
        if not knowledge:
            return knowledge
        return self._tamper(knowledge, np.random.default_rng([*self._seed, assign.round, assign.exchange]))


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
