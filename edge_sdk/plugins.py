"""The plug-ins: what other packages register in the entry-point groups of this one, and what is wrong with each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.methods.contract.registry import METHODS, load_method
from edge_sdk.methods.contract.requests import REQUESTS, Handler
from edge_sdk.objectives import TERMS, load_term
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.schema import registered
from edge_sdk.protocol.knowledge import PAYLOADS, Payload

FORMS = ("edge_sdk.torch_terms", "edge_sdk.stacked_terms")
"""The groups of faster forms of loss terms."""


def _load_handler(name: str) -> Handler:
    found = registry.load_entry(REQUESTS, name, "request handler")
    if not isinstance(found, Handler) or found.request.__name__ != name:
        where = registry.value(REQUESTS, name)
        raise UsageError(
            f"request handler {name!r}: {where} does not serve a request {name}; {registry.remedy(REQUESTS, name)}"
        )
    return found


def _load_form(group: str) -> Callable[[str], Any]:
    return lambda name: registry.load_entry(group, name, f"form in {group} of the loss term")


LOADERS: Mapping[str, Callable[[str], Any]] = {
    METHODS: load_method,
    TERMS: load_term,
    REQUESTS: _load_handler,
    PAYLOADS: lambda tag: registered(Payload, tag),
    **{group: _load_form(group) for group in FORMS},
}
"""The entry-point groups, each with the function that loads and checks what a name stands for."""


@dataclass(frozen=True, slots=True)
class PlugIn:
    """An entry point of another package."""

    group: str
    name: str
    target: str
    """MODULE:OBJECT."""
    package: str
    fault: str
    """Why it does not load, and what to do about it, in one line, or empty if it loads."""


def installed_plugins(groups: Iterable[str] = tuple(LOADERS)) -> tuple[PlugIn, ...]:
    """Return the plug-ins of some groups, after an attempt to load each."""
    found = []
    for group in groups:
        packages: dict[object, str] = {}
        """By distribution, or by entry point without one: to read a package's name is to parse all its metadata."""
        for name in registry.names(group):
            for point in registry.points(group)[name]:
                owner = getattr(point, "dist", None) or point
                if owner not in packages:
                    packages[owner] = registry.package(point)
                if packages[owner] != registry.OWN_PACKAGE:
                    found.append(PlugIn(group, name, point.value, packages[owner], _fault(group, name)))
    return tuple(found)


def plugin_faults() -> tuple[str, ...]:
    """Return a line for each plug-in that does not load; faster forms, which may load torch, are not tried."""
    groups = [group for group in LOADERS if group not in FORMS]
    return tuple(dict.fromkeys(each.fault for each in installed_plugins(groups) if each.fault))


def _fault(group: str, name: str) -> str:
    if group in FORMS and importlib.util.find_spec("torch") is None:
        return ""  # nothing uses a form without torch
    try:
        LOADERS[group](name)
    except EdgeError as error:
        return str(error)
    return ""
