"""Values that cannot change: a dict for what a message says is a Mapping, and the next version of a frozen state."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    names = tuple(field.name for field in dataclasses.fields(cls))
    return names, operator.attrgetter(*names)


def changed(value: D, **changes: Any) -> D:
    """A frozen dataclass of several fields with some of them changed: dataclasses.replace, in half its time.

    State machines do little else.
    """
    cls: type = type(value)
    names, read = _fields(cls)
    return type(value)(**dict(zip(names, read(value), strict=True)) | changes)


class FrozenDict(dict[K, V]):
    """Reads, compares, copies, pickles and prints like a dict; every way to change it raises TypeError."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilt whole: the default way of pickling and copying would set the items one by one."""
        return FrozenDict, (dict(self),)


def _refuse(*_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError("a received message does not change: build a new dict instead")


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(FrozenDict, _name, _refuse)
