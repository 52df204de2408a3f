"""The installed methods: entry points of the group `edge_sdk.methods`, each a class derived from Method."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from edge_sdk.errors import UsageError
from edge_sdk.methods.base import Method
from edge_sdk.protocol.messages import FederationSpec

GROUP = "edge_sdk.methods"


def load_method(name: str) -> type[Method[Any]]:
    """Load the method that is registered under a name.  Raises UsageError with the known names."""
    points = _points()
    if name not in points:
        raise UsageError(f"federation.method: no method {name!r}; registered are {', '.join(sorted(points)) or 'none'}")
    try:
        found = points[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"method {name!r}: {points[name].value} does not load: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"method {name!r}: {points[name].value} is no class derived from edge_sdk.methods.Method")
    return found


def method_of(spec: FederationSpec) -> Method[Any]:
    """Make a federation's method with its parameters.  Raises UsageError if this side does not have the method."""
    return load_method(spec.method).under(spec.params)


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    return tuple(sorted(_points()))


@functools.cache
def _points() -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return the entry points by name.  Cached: a lookup takes milliseconds, and simulations repeat it per device."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
