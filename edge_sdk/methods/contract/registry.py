"""The installed methods: entry points of the group `edge_sdk.methods`, each derived from Method; and their vocabulary.

The vocabulary is the loss terms, requests and payload kinds that a method uses, all of which must be registered.  It
declares its terms by name and its payloads in its exchanges.  The requests and terms that it creates are found in the
code of its functions, and of the functions of the same packages that they name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from edge_sdk.errors import UsageError, meant
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.requests import REQUESTS, Request, handler_of
from edge_sdk.objectives import TERMS, Term, load_term
from edge_sdk.protocol import registry
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.frames.schema import registered, tag_of
from edge_sdk.protocol.knowledge import PAYLOADS, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import slots_of
from edge_sdk.reductions.influence import COUNTED

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


@functools.cache
def check_registered(method: type[Method[Any]]) -> None:
    """Raise UsageError, in one line, for the first term, request or payload of a method that is not registered.

    The line names the class, and the entry point to add.  A term, payload or handler that does not load raises its own
    error.  The result is cached, because each device of a simulation asks.
    """
    for request in requests_of(method):
        name = request.__name__
        _check_entry(method, request, REQUESTS, name, "MODULE:HANDLER")
        if not registry.is_own(REQUESTS, name):  # our own handlers would load the device's side on a coordinator
            handler_of(request)
    for term in sorted(_named(method, Term), key=_place):
        _check_entry(method, term, TERMS, term.name, _place(term))
    for kind in {slot.kind: None for slot in slots_of((*method.exchanges, method.closing))}:
        tag = tag_of(kind)
        _check_entry(method, kind, PAYLOADS, tag, _place(kind))
        registered(Payload, tag)
    for name in sorted(method.terms):
        if not registry.value(TERMS, name):
            raise UsageError(
                f"method {method.name!r} needs the loss term {name!r}, which is missing from the entry points "
                f"{TERMS}; install the package that has the term"
            )
        load_term(name)


def requests_of(method: type[Method[Any]]) -> tuple[type[Request], ...]:
    """Return the classes of requests that a method may yield, by name."""
    return tuple(sorted(_named(method, Request), key=_place))


def _check_entry(method: type[Method[Any]], cls: type, group: str, name: str, target: str) -> None:
    if not registry.value(group, name):
        raise UsageError(
            f"method {method.name!r}: {cls.__name__} ({_place(cls)}) is not registered; "
            f"add {name} = {target} to the entry points {group} of its package, and install it again"
        )


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _named(method: type[Method[Any]], base: type) -> set[Any]:
    # by its bases: `issubclass` of an abstract class would ask all its subclasses
    found = {each for each in _classes_named(cast("type", method)) if base in each.__mro__} - {base}
    return {each for each in found if not inspect.isabstract(each)}


@functools.cache
def _classes_named(method: type) -> frozenset[type]:
    """Return the classes that a method's functions name."""
    own = {"edge_sdk", *(base.__module__.partition(".")[0] for base in method.__mro__[:-1])}
    left = [each for base in method.__mro__ for value in vars(base).values() for each in _functions(value)]
    seen, found = set[FunctionType](), set[type]()
    while left:
        function = left.pop()
        if function in seen or function.__module__.partition(".")[0] not in own:
            continue
        seen.add(function)
        for value in _globals_named(function):
            found |= {value} if isinstance(value, type) else set()
            left += _functions(value)
    return frozenset(found)


def _functions(value: Any) -> list[FunctionType]:
    """Return the function that an attribute of a class is, or wraps."""
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    return [inner] if isinstance(inner, FunctionType) else []


def _globals_named(function: FunctionType) -> Iterator[Any]:
    """Return the global objects that a function names, those in a module that it names included."""
    names = list(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value).get(each) for each in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def why_in_rounds(method: Method[Any]) -> str:
    """Return why a method needs rounds, or "" if uploads of different ages can count together in a buffer."""
    if len(method.exchanges) > 1:
        return f"each of its {len(method.exchanges)} exchanges answers the one before, which all devices must have done"
    if method.lock_step:
        return "every exchange waits for every device"
    if method.caching is not None:
        return "it keeps the uploads of devices by round"
    if method.own_rounds:
        return method.own_rounds
    exchange = method.exchanges[0]
    if not exchange.up:
        return "devices send nothing"
    for role, slot in exchange.up.items():
        if role in method.newest:
            continue
        if role not in method.means:
            return f"it does more with the {role} of a round than average them, so an old upload cannot count for less"
        sent = exchange.down.get(role)
        both_ways = slot.kind is Weights and sent is not None and sent.kind is Weights and not sent.personal
        if slot.kind not in COUNTED and not both_ways:
            return f"its {role} have no weight that could shrink with their age"
    return ""


def begins_alike(method: Method[Any]) -> bool:
    """Whether an upload made from the first version, which devices never receive, can count later."""
    return all(slot.kind is not Weights for slot in method.exchanges[0].up.values())
