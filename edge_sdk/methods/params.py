"""The parameters of a method: a dataclass whose annotations define the keys and values of a [method] table."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from edge_sdk.errors import UsageError
from edge_sdk.protocol.messages import Scalar
from edge_sdk.protocol.toml_table import allowed

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a parameter may take, as in `tau: Annotated[int, Range(1, 1000)] = 5`."""

    low: float
    high: float = 2**31 - 1
    paper: str = ""
    """The value that the paper takes; shown to users who give another one."""


Weighting: TypeAlias = Literal["samples", "uniform"]
"""How devices are weighted in a mean: by their samples, or all equally."""
Start: TypeAlias = Literal["first", "equal"]
"""In round 0 nobody has weights of the federation yet.  `first`: the model of the contributor with the lowest number
becomes everybody's; `equal`: all devices start from equal weights (one file, one seed), so that round 0 is averaged.
A federation whose devices start equal (`federation.start`) has `equal` as the default of every method's `start`."""
SlotAge: TypeAlias = Annotated[int, Range(0, paper="0: slots never expire")]
"""Rounds after which the upload of a device that stays away no longer counts; 0: never."""


def read(params: type[P], table: Mapping[str, Scalar], method: str) -> P:
    """Read parameters from a table.  Raises UsageError for an unknown or missing key, or an impossible value."""
    fields = {field.name: field for field in dataclasses.fields(params)}  # type: ignore[arg-type]  # a dataclass
    for key in table:
        if key not in fields:
            raise UsageError(f"method.{key}: {method} has no such parameter; {allowed(key, sorted(fields))}")
    for key, field in fields.items():
        if key not in table and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(f"method.{key}: missing, and {method} has no default for it")
    annotations = _annotations(typing.cast("type", params))
    try:
        return params(**{key: _checked(key, value, annotations[key]) for key, value in table.items()})
    except ValueError as error:  # raised here, or by the class in __post_init__
        raise UsageError(f"method.{error}") from None


def has_start(params: type[Any]) -> bool:
    """Return whether a method has the parameter `start`, and gives it its one meaning."""
    return bool(_annotations(typing.cast("Any", params)).get("start") == Start)


def as_table(params: Any) -> dict[str, Scalar]:
    """Return the values of all parameters, including those at their defaults."""
    return dataclasses.asdict(params)


@functools.cache
def _annotations(params: type) -> dict[str, Any]:
    """Return the annotations of a dataclass, cached: every exchange needs them, and each lookup compiles them again."""
    return typing.get_type_hints(params, include_extras=True)


_WORDS: Mapping[type, str] = {bool: "true or false", int: "an integer", float: "a finite number", str: "a string"}


def _checked(key: str, value: Scalar, wanted: Any) -> Scalar:
    """Return a parameter as its field is annotated.  An integer is accepted for a float; nothing else is converted."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    kind = str if origin is Literal else arguments[0] if origin is Annotated else wanted
    if kind is float and type(value) is int and abs(value) <= 2**53:
        value = float(value)
    if kind in _WORDS and (type(value) is not kind or (isinstance(value, float) and not math.isfinite(value))):
        raise ValueError(f"{key}: expected {_WORDS[kind]}, found {value!r}")
    if origin is Literal and value not in arguments:
        raise ValueError(f"{key}: expected {' or '.join(arguments)}, found {value!r}")
    for rule in arguments[1:] if origin is Annotated else ():
        if isinstance(rule, Range) and not rule.low <= typing.cast("float", value) <= rule.high:
            number = "an integer" if kind is int else "a number"
            paper = f" (the paper takes {rule.paper})" if rule.paper else ""
            raise ValueError(f"{key}: expected {number} from {rule.low} to {rule.high}{paper}, found {value!r}")
    return value
