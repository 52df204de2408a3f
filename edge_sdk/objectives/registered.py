"""The installed loss terms: those of this package and of others, in the entry-point group `edge_sdk.terms`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.objectives.base import On, Term
from edge_sdk.objectives.on_head import HeadTerm
from edge_sdk.protocol import registry

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
