"""Immutable sets and maps that grow by one at constant cost; older versions stay valid and unchanged.

A round's set of uploads grows with every upload.  Copying it each time would make each upload cost time proportional to
the number of devices: 10,000 uploads took 1.2 s, and take 11 ms.  Here all versions share one dict, and each stores the
number of its entries.  Only adding to a version that was extended before makes a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self  # of the tools, not of a base install

K = TypeVar("K")
V = TypeVar("V")


class _AppendOnly(Generic[K, V]):
    """The common base of sets and maps."""

    __slots__ = ("_length", "_shared")
    _shared: dict[K, tuple[int, V]]
    """Place and value by key."""
    _length: int

    def _longer(self, key: K, value: V) -> Self:
        """Return the object with one more entry; an existing key keeps its value."""
        shared, length = self._shared, self._length
        found = shared.get(key)
        if found is not None and found[0] < length:
            return self
        if len(shared) > length:  # another version was made longer
            shared = dict(islice(shared.items(), length))
        shared[key] = length, value
        longer = object.__new__(type(self))
        longer._shared, longer._length = shared, length + 1
        return longer

    def __contains__(self, key: object) -> bool:
        found = self._shared.get(key)  # type: ignore[arg-type]  # any object may be asked for
        return found is not None and found[0] < self._length

    def __iter__(self) -> Iterator[K]:
        return islice(self._shared, self._length)

    def __len__(self) -> int:
        return self._length


class AppendOnlyMap(_AppendOnly[K, V], Mapping[K, V]):
    """A mapping in the order of insertion."""

    __slots__ = ()

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._shared = {key: (at, each) for at, (key, each) in enumerate((items or {}).items())}
        self._length = len(self._shared)

    def added(self, key: K, value: V) -> AppendOnlyMap[K, V]:
        """Return the map with one more entry; an existing key keeps its value."""
        return self._longer(key, value)

    def __getitem__(self, key: K) -> V:
        at, value = self._shared[key]
        if at >= self._length:
            raise KeyError(key)
        return value


class AppendOnlySet(_AppendOnly[K, None], AbstractSet[K]):
    """A set; it equals a frozenset of the same items, and has the same hash."""

    __slots__ = ()

    def __init__(self, items: Iterable[K] = ()) -> None:
        self._shared = {item: (at, None) for at, item in enumerate(dict.fromkeys(items))}
        self._length = len(self._shared)

    def added(self, item: K) -> AppendOnlySet[K]:
        """Return the set with one more item."""
        return self._longer(item, None)

    def __hash__(self) -> int:
        return self._hash()

    @classmethod
    def _from_iterable(cls, items: Iterable[K]) -> frozenset[K]:  # type: ignore[override]  # what | and - give
        return frozenset(items)
