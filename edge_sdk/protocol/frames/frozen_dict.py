"""A dict that cannot change, for the mappings in messages."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

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
