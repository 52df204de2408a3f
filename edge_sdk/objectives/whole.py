"""The installed loss terms, objectives, which are sums of terms, and couplings, which give two models one each."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import EdgeError, ModelError, UsageError
from edge_sdk.objectives.base import On, Seen, Term
from edge_sdk.objectives.on_head import HeadTerm
from edge_sdk.protocol import registry

Objective: TypeAlias = tuple[Term, ...]


def objective_loss(objective: Sequence[Term], seen: Seen) -> float:
    """Return the sum of all terms on one mini-batch.  Raises ValueError if a term's input is missing."""
    return sum(value_of(term, seen) for term in objective)


def value_of(term: Term, seen: Seen) -> float:
    """Return the value of a term on one mini-batch.  Raises ModelError, which names the term, if it is not a number."""
    value = term.value(seen)
    if not isinstance(value, Real):
        raise ModelError(f"loss term {term.name!r}: value() gave {type(value).__name__}, expected one number")
    return value


def slope_of(term: Term, seen: Seen, shape: tuple[int, ...]) -> Floats:
    """Return the slope of a term on one mini-batch.  Raises ModelError, which names the term, for another shape."""
    slope = term.slope(seen)
    if not isinstance(slope, np.ndarray) or slope.shape != shape:
        found = f"an array {slope.shape}" if isinstance(slope, np.ndarray) else type(slope).__name__
        raise ModelError(f"loss term {term.name!r}: slope() gave {found}, expected an array {shape}")
    return slope


def logit_gradient(objective: Sequence[Term], seen: Seen) -> Floats:
    """Return the gradient of the sum of the terms on the logits: (b, k); zero without such terms."""
    return _summed(objective, "logits", seen, seen.logits)


def feature_gradient(objective: Sequence[Term], seen: Seen, features: Floats) -> Floats:
    """Return the gradient of the sum of the terms on the features: (b, d)."""
    return _summed(objective, "features", seen, features)


def weight_gradient(objective: Sequence[Term], seen: Seen, weights: Floats) -> Floats:
    """Return the gradient of the sum of the terms on the weights: (p,)."""
    return _summed(objective, "weights", seen, weights)


def _summed(objective: Sequence[Term], on: str, seen: Seen, like: Floats) -> Floats:
    total = np.zeros_like(like)
    for term in objective:
        if term.on == on:
            total += slope_of(term, seen, like.shape)
    return total


def on_features(objective: Sequence[Term]) -> bool:
    """Return whether one of the terms needs the features."""
    return any(term.on == "features" for term in objective)


def at_step(objective: Objective, step: int) -> Objective:
    """Return the objective for one step alone: each term's knowledge of that step becomes its step 0."""
    return at_steps(objective, slice(step, step + 1))


def at_steps(objective: Objective, steps: slice) -> Objective:
    """Return the objective for some steps: each term's knowledge of the first of them becomes its step 0."""
    return tuple(term.at(steps) for term in objective)


class Coupling(ABC):
    """Two objectives for one mini-batch, each from the outputs of both models: a frozen dataclass.

    The other model's outputs are constants, so no gradient passes from one model to the other.
    """

    __slots__ = ()

    @property
    def on_features(self) -> bool:
        """Whether the objectives use features, which both models must give."""
        return False

    @abstractmethod
    def objectives(self, own: Seen, proxy: Seen) -> tuple[Objective, Objective]:
        """Return the objectives of the device's own model and of the proxy, for one step.

        own, proxy: logits (b, k), labels (b,) and perhaps features (b, d), all before either model takes its step.
        """

    def after(self, own: Seen, proxy: Seen) -> Coupling:
        """Return the coupling for the next mini-batch; one that learns nothing returns itself."""
        del own, proxy
        return self


TERMS = "edge_sdk.terms"


@functools.cache
def terms() -> Mapping[str, type[Term]]:
    """Return the registered terms by name, except those that do not load, which fail only when they are used."""
    found = {}
    for name in registry.names(TERMS):
        with contextlib.suppress(EdgeError):
            found[name] = load_term(name)
    return found


def load_term(name: str) -> type[Term]:
    """Return a registered term.  Raises an EdgeError, in one line, if it does not load or is not a term."""
    found = registry.load_entry(TERMS, name, "loss term")
    if not (isinstance(found, type) and issubclass(found, Term) and getattr(found, "name", "") == name):
        wrong = f"{registry.value(TERMS, name)} is not an edge_sdk.objectives.Term with this name"
    elif (found.on == "head") != issubclass(found, HeadTerm):
        wrong = "a term on the head, and no other, is an edge_sdk.objectives.HeadTerm"
    else:
        return found
    raise UsageError(f"loss term {name!r}: {wrong}; {registry.remedy(TERMS, name)}")


def names_on(*on: On) -> frozenset[str]:
    """Return the names of the registered terms that are functions of these."""
    return frozenset(name for name, term in terms().items() if term.on in on)


@functools.cache
def form_of(group: str, kind: type[Term]) -> Any:
    """Return the form of a term in an entry-point group of faster forms, or None without one.

    A class that is not the registered term of its name has no form: a form equals the mathematics of its own term.
    Raises UsageError, in one line, if the form does not load.
    """
    if terms().get(kind.name) is not kind or not registry.value(group, kind.name):
        return None
    return registry.load_entry(group, kind.name, f"form in {group} of the loss term")
