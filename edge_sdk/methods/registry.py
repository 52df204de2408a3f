"""The installed methods: entry points of the group `edge_sdk.methods`, each a class derived from Method."""

from __future__ import annotations

from typing import Any

from edge_sdk.errors import UsageError
from edge_sdk.methods.base import Method
from edge_sdk.protocol import registry
from edge_sdk.protocol.messages import FederationSpec

METHODS = "edge_sdk.methods"


def load_method(name: str) -> type[Method[Any]]:
    """The method that is registered under a name.  Raises UsageError with the known names."""
    if not registry.value(METHODS, name):
        known = ", ".join(registry.names(METHODS)) or "none"
        raise UsageError(f"federation.method: no method {name!r}; registered are {known}")
    found = registry.load(METHODS, name, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(
            f"method {name!r}: {registry.value(METHODS, name)} is no class derived from edge_sdk.methods.Method"
        )
    return found


def method_of(spec: FederationSpec) -> Method[Any]:
    """Make a federation's method with its parameters.  Raises UsageError if this side does not have the method."""
    return load_method(spec.method).under(spec.params)


def method_names() -> tuple[str, ...]:
    """The names of all registered methods, sorted."""
    return registry.names(METHODS)
