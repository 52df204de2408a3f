"""Immutable sets and maps that grow by one at constant cost; older versions stay valid and unchanged.

The uploads that a round has added up grow in number with every upload.  Copying them each time would make each upload
cost as much as there are devices.  Here all versions share one dict, and each knows how many of its entries it has.
Only adding to a version that was extended before makes a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class AppendOnlyMap(Mapping[K, V], Generic[K, V]):
    """A mapping in the order of insertion."""

    __slots__ = ("_length", "_shared")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._shared: dict[K, tuple[int, V]] = {key: (at, each) for at, (key, each) in enumerate((items or {}).items())}
        self._length = len(self._shared)

    def added(self, key: K, value: V) -> AppendOnlyMap[K, V]:
        """Return the map with one more entry; an existing key keeps its value."""
        if key in self:
            return self
        longer: AppendOnlyMap[K, V] = object.__new__(AppendOnlyMap)
        longer._shared, longer._length = self._shared, self._length + 1
        if len(self._shared) > self._length:  # another version was made longer
            longer._shared = dict(islice(self._shared.items(), self._length))
        longer._shared[key] = self._length, value
        return longer

    def __contains__(self, key: object) -> bool:
        found = self._shared.get(key)  # type: ignore[arg-type]  # any object may be asked for
        return found is not None and found[0] < self._length

    def __getitem__(self, key: K) -> V:
        at, value = self._shared[key]
        if at >= self._length:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return islice(self._shared, self._length)

    def __len__(self) -> int:
        return self._length


class AppendOnlySet(AbstractSet[K], Generic[K]):
    """A set; it equals a frozenset of the same items, and has the same hash."""

    __slots__ = ("_map",)

    def __init__(self, items: Iterable[K] = ()) -> None:
        self._map: AppendOnlyMap[K, None] = AppendOnlyMap(dict.fromkeys(items))

    def added(self, item: K) -> AppendOnlySet[K]:
        """Return the set with one more item."""
        longer: AppendOnlySet[K] = object.__new__(AppendOnlySet)
        longer._map = self._map.added(item, None)
        return longer

    def __contains__(self, item: object) -> bool:
        return item in self._map

    def __iter__(self) -> Iterator[K]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __hash__(self) -> int:
        return self._hash()

    @classmethod
    def _from_iterable(cls, items: Iterable[K]) -> frozenset[K]:  # type: ignore[override]  # what | and - give
        return frozenset(items)
