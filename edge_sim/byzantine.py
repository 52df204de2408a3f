"""Byzantine devices: a function replaces the knowledge of their uploads.

`byzantine = "MODULE:FUNCTION"` in a [[fleet]] row names one; FUNCTION(knowledge, rng) -> knowledge receives the
payloads of an upload by role, as the method on the device made them, and a generator seeded by the
seed, the device, the round and the exchange.  Its result must be legal (the same payload kinds, shapes and
classes, finite numbers): the coordinator refuses illegal frames, as `rubbish` shows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.agent.agent import Agent
from edge_sdk.errors import UsageError
from edge_sdk.loading import load_function
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.knowledge import HyperKnowledge, LogitGradients, Payload, PublicLogits
from edge_sdk.protocol.messages import Assign, Hello
from edge_sdk.protocol.transforms import Knowledge
from edge_sdk.reductions import MOST
from edge_sdk.transport.base import Transport

Tamper: TypeAlias = Callable[[Knowledge, np.random.Generator], Knowledge]


def load_tamper(name: str) -> Tamper:
    """Return the function that MODULE:FUNCTION names.

    Raises UsageError also for a function with another signature; does not call it.
    """
    tamper: Tamper = load_function(name, "", example="edge_sim.byzantine:flip_signs")
    if not _takes_knowledge(tamper):
        raise UsageError(f"{name!r}: expected a function of your own, FUNCTION(knowledge, rng) -> knowledge")
    return tamper


def _takes_knowledge(found: Callable[..., object]) -> bool:
    """Whether an object can be called as FUNCTION(knowledge, rng); Python's builtins cannot."""
    if inspect.isbuiltin(found) or inspect.isclass(found):
        return False
    try:
        inspect.signature(found).bind(None, None)
    except (TypeError, ValueError):  # other arguments, or an unknown signature
        return False
    return True


def agent_for(name: str | None, federation: str, seed: int) -> Callable[..., Agent]:
    """Return what makes a device's agent from an Agent's arguments; if a function is named, it alters the uploads."""
    if name is None:
        return Agent
    tamper, seeds = CheckedTamper(name), [seed, *federation.encode()]

    def byzantine(*, broker: Transport, **honest: Any) -> Agent:
        if tamper.breaks_frames:
            broker = RubbishTransport(broker, np.random.default_rng(seeds))
        agent = Agent(broker=broker, **honest)
        agent.participant.context.outgoing = TamperedMessages(tamper, seeds)
        return agent

    return byzantine


class CheckedTamper:
    """A named Tamper whose failures and wrong results become one-line errors."""

    def __init__(self, name: str) -> None:
        self._name, self._tamper = name, load_tamper(name)
        self.claims: int = getattr(self._tamper, "claims", 0)
        """The number of samples that the device falsely claims when it joins, or 0 to claim the true one."""
        self.breaks_frames: bool = getattr(self._tamper, "breaks_frames", False)
        """Whether to send random bytes instead of uploads."""

    def __call__(self, knowledge: Knowledge, rng: np.random.Generator) -> Knowledge:
        """Call the function.  Raises UsageError if it raises, or returns knowledge of another structure."""
        try:
            found = self._tamper(knowledge, rng)
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            words = one_line(f"{type(error).__name__}: {error}")
            raise UsageError(f"fleet.byzantine: {self._name!r} raised {words}") from error
        if wrong := _unlike(found, knowledge):
            raise UsageError(f"fleet.byzantine: {self._name!r} must return knowledge like its argument: {wrong}")
        return found


class TamperedMessages:
    """The messages that a Byzantine device sends in place of its own."""

    def __init__(self, tamper: CheckedTamper, seed: Sequence[int]) -> None:
        self._tamper, self._seed = tamper, seed

    def hello(self, hello: Hello) -> Hello:
        """Implement Outgoing: claim as many samples as the attack needs, without counts by class."""
        return replace(hello, samples=self._tamper.claims, class_counts=()) if self._tamper.claims else hello

    def knowledge(self, assign: Assign, knowledge: Knowledge) -> Knowledge:
        """Implement Outgoing: replace the knowledge of the upload before it is stored and sent."""
        if not knowledge:
            return knowledge
        return self._tamper(knowledge, np.random.default_rng([*self._seed, assign.round, assign.exchange]))


class RubbishTransport:
    """A transport that replaces each upload by random bytes and passes on everything else."""

    def __init__(self, inner: Transport, rng: np.random.Generator) -> None:
        self._inner, self._rng = inner, rng
        self.connect, self.poll, self.close = inner.connect, inner.poll, inner.close
        self.accept_up_to, self.screen_with = inner.accept_up_to, inner.screen_with

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Implement Transport: replace an upload by random bytes of the same length."""
        if topic.endswith("/upd"):
            frame = self._rng.bytes(len(frame))
        self._inner.send(topic, frame, retain=retain, answered=answered)


def rubbish(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Send random bytes instead of every upload, like a broken device."""
    return knowledge


rubbish.breaks_frames = True  # type: ignore[attr-defined]  # read by CheckedTamper


def flip_signs(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Change the sign of every number."""
    return with_floats(knowledge, lambda values: -values)


def noise(knowledge: Knowledge, rng: np.random.Generator) -> Knowledge:
    """Replace the numbers by Gaussian noise with the same standard deviation."""
    return with_floats(knowledge, lambda values: rng.normal(0.0, float(values.std()) or 1.0, values.shape))


def magnify(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Multiply every number by ten."""
    return with_floats(knowledge, lambda values: 10.0 * values)


def flip_ten(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Multiply every number by -10."""
    return with_floats(knowledge, lambda values: -10.0 * values)


def swap_classes(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Give each class the values of another one: reverse the order of rows by class, or of columns of logits.

    Weights, whose classes cannot be seen, are reversed as a whole.
    """
    found: dict[str, Payload] = {}
    for role, payload in knowledge.items():
        by_column = isinstance(payload, (PublicLogits, LogitGradients))
        found.update(with_floats({role: payload}, _columns_reversed if by_column else _rows_reversed))
    return found


def _columns_reversed(values: Any) -> Any:
    return values[:, ::-1]


def _rows_reversed(values: Any) -> Any:
    return values[::-1]


def little_is_enough(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Move every number by 1.5 standard deviations of its column, against its sign: too little to stand out.

    After Baruch, Baruch and Goldberg, "A Little Is Enough", NeurIPS 2019, whose attackers know each other's numbers;
    here a device knows only its own.
    """
    return with_floats(knowledge, lambda values: values - 1.5 * np.sign(values) * _spread(values))


def inflate_counts(knowledge: Knowledge, _rng: np.random.Generator) -> Knowledge:
    """Change the sign of every number, and claim the largest number of samples that the protocol allows."""
    found = {}
    for role, payload in with_floats(knowledge, lambda values: -values).items():
        claims: dict[str, Any] = {}
        if isinstance(getattr(payload, "count", None), int):
            claims["count"] = MOST
        if isinstance(counts := getattr(payload, "counts", None), np.ndarray):
            claims["counts"] = np.full_like(counts, MOST // len(counts))
        found[role] = replace(payload, **claims)
    return found


inflate_counts.claims = MOST  # type: ignore[attr-defined]  # read by CheckedTamper


def _spread(values: Any) -> Any:
    return values.std(axis=0) if values.ndim > 1 else values.std()


def with_floats(knowledge: Knowledge, change: Callable[[Any], Any]) -> Knowledge:
    """Return the knowledge with `change` applied to every array of floats; also for your own attacks.

    Probabilities are made legal again, because the coordinator refuses illegal frames.
    """
    found = {}
    for role, payload in knowledge.items():
        arrays = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
        floats = {
            name: change(values).astype(values.dtype)
            for name, values in arrays.items()
            if isinstance(values, np.ndarray) and values.dtype.kind == "f"
        }
        if isinstance(payload, HyperKnowledge):
            floats["soft"] = _probabilities(floats["soft"])
        found[role] = replace(payload, **floats)
    return found


def _probabilities(values: Any) -> Any:
    """Return rows (m, k) made non-negative with sum 1, in the same order."""
    shifted = values.astype(np.float64) - np.minimum(values.min(axis=1, keepdims=True), 0.0)
    total = shifted.sum(axis=1, keepdims=True)
    even = np.full_like(shifted, 1.0 / values.shape[1])
    return np.divide(shifted, total, out=even, where=total > 0).astype(values.dtype)


def _unlike(found: object, knowledge: Knowledge) -> str:
    """Describe how the structure of a function's result differs from its argument's, or return empty.

    The numbers of classes and rows and the values may differ; the protocol checks these.
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
    """Describe the value of a payload's field: its type; of an array the dtype and the number of axes."""
    return f"{value.ndim}-d {value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
