"""The fields of a dataclass, by name and by value."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def getter(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of an object's fields, in the order of `field_names`."""
    fields = field_names(cls)
    if len(fields) > 1:
        return operator.attrgetter(*fields)
    return lambda value: tuple(getattr(value, name) for name in fields)
