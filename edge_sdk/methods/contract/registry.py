"""The installed methods: entry points of the group `edge_sdk.methods`, each a class derived from Method."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

from edge_sdk.errors import UsageError, meant
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.vocabulary import check_registered
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import FederationSpec

METHODS = "edge_sdk.methods"


def load_method(name: str) -> type[Method[Any]]:
    """Return the method with a name, after checking that everything it uses is registered.

    Raises UsageError, in one line, with the known names, or with the broken or missing registration.
    """
    if not registry.value(METHODS, name):
        names = registry.names(METHODS)
        near = meant(name, names)
        known = f"{near}edge-sdk methods lists all" if near else f"registered are {', '.join(names) or 'none'}"
        raise UsageError(f"federation.method: no method {name!r}; {known}")
    found = registry.load_entry(METHODS, name, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(
            f"method {name!r}: {registry.value(METHODS, name)} is not a class derived from edge_sdk.methods.Method; "
            f"{registry.remedy(METHODS, name)}"
        )
    fault = _description_fault(name, cast("type", found))
    if fault:
        raise UsageError(f"method {name!r}: {registry.value(METHODS, name)} {fault}; {registry.remedy(METHODS, name)}")
    check_registered(cast("type", found))
    return found


@functools.cache
def _description_fault(name: str, cls: type) -> str:
    """Return the fault in a class's attributes, in words that follow its name, or empty without a fault."""
    method: type[Method[Any]] = cls
    if not isinstance(getattr(method, "name", None), str):
        return "has no name: give the class one, a str"
    if method.name != name:
        return f"has the name {method.name!r}: register it under that name"
    if not hasattr(method, "params_type"):
        return "names no parameters: derive it from Method[Params], where Params is a frozen dataclass"
    made: Any = method
    if not needed_parameters(method):
        try:
            made = method()
            made.digest  # noqa: B018  # an error in it would recur at every use
        except Exception as error:  # noqa: BLE001  # a class of another package may raise anything
            return f"cannot be made with its defaults: {one_line(f'{type(error).__name__}: {error}')}"
    for attribute in ("title", "citation", "discloses"):  # may be properties, which follow from the parameters
        if not isinstance(getattr(made, attribute, None), str | property):
            return f"has no {attribute}: give the class one, a str"
    return ""


def needed_parameters(method: type[Method[Any]]) -> tuple[str, ...]:
    """Return the parameters of a method that have no default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(method.params_type)
    return tuple(each.name for each in fields if each.default is missing and each.default_factory is missing)


def method_fault(name: str) -> str:
    """Return why a registered method cannot be used, in one line, or empty if it can."""
    try:
        load_method(name)
    except UsageError as error:
        return str(error)
    return ""


def method_of(spec: FederationSpec) -> Method[Any]:
    """Make a federation's method with its parameters.  Raises UsageError if this side lacks the method."""
    return load_method(spec.method).under(spec.params)


def method_names() -> tuple[str, ...]:
    """The names of all registered methods, sorted."""
    return registry.names(METHODS)
