"""The installed methods: entry points of the group `edge_sdk.methods`, each a class derived from Method."""

from __future__ import annotations

from typing import Any

from edge_sdk.errors import UsageError, meant
from edge_sdk.methods.base import Method
from edge_sdk.methods.vocabulary import check_registered
from edge_sdk.protocol import registry
from edge_sdk.protocol.messages import FederationSpec

METHODS = "edge_sdk.methods"


def load_method(name: str) -> type[Method[Any]]:
    """The method that is registered under a name, with everything that it uses registered, too.

    Raises UsageError, in one line: with the known names, or with what is broken or was not registered.
    """
    if not registry.value(METHODS, name):
        names = registry.names(METHODS)
        near = meant(name, names)
        known = f"{near}edge-sdk methods lists all" if near else f"registered are {', '.join(names) or 'none'}"
        raise UsageError(f"federation.method: no method {name!r}; {known}")
    found = registry.load_entry(METHODS, name, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(
            f"method {name!r}: {registry.value(METHODS, name)} is no class derived from edge_sdk.methods.Method; "
            f"{registry.remedy(METHODS, name)}"
        )
    check_registered(found)
    return found


def method_fault(name: str) -> str:
    """Return why a registered method cannot be used, in one line; empty: it can."""
    try:
        load_method(name)
    except UsageError as error:
        return str(error)
    return ""


def method_of(spec: FederationSpec) -> Method[Any]:
    """Make a federation's method with its parameters.  Raises UsageError if this side does not have the method."""
    return load_method(spec.method).under(spec.params)


def method_names() -> tuple[str, ...]:
    """The names of all registered methods, sorted."""
    return registry.names(METHODS)
