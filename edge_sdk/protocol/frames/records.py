"""Records of messages: the fields of a dataclass, and a dict that cannot change."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar


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


K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that can be read, compared, copied, pickled and printed; every change raises TypeError."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and unpickle all items at once; the default would set them one by one, which is refused."""
        return FrozenDict, (dict(self),)


def _raise_type_error(*_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError("a received message cannot change: build a new dict instead")


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(FrozenDict, _name, _raise_type_error)
