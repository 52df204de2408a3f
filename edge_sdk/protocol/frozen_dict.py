"""A dict that cannot change, for what a message says is a Mapping."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


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
