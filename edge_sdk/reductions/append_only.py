"""Sets and maps that grow by one at no cost, and stay values: the smaller one is still there, and unchanged.

What a round has folded grows with every upload.  Copied each time, it would make an upload cost as much as there are
devices.  Here all versions share one dict and each knows how much of it is its own; only who adds to a version that
was added to before pays for a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class AppendOnlyMap(Mapping[K, V], Generic[K, V]):
    """A mapping in the order of adding."""

    __slots__ = ("_length", "_shared")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._shared: dict[K, tuple[int, V]] = {key: (at, each) for at, (key, each) in enumerate((items or {}).items())}
        self._length = len(self._shared)

    def added(self, key: K, value: V) -> AppendOnlyMap[K, V]:
        """With one more; a key that is there keeps its value."""
        if key in self:
            return self
        grown: AppendOnlyMap[K, V] = AppendOnlyMap()
        grown._shared, grown._length = self._shared, self._length + 1
        if len(self._shared) > self._length:  # another version has grown from this one
            grown._shared = dict(islice(self._shared.items(), self._length))
        grown._shared[key] = self._length, value
        return grown

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
    """A set; equal to a frozenset of the same, and hashed like it."""

    __slots__ = ("_map",)

    def __init__(self, items: Iterable[K] = ()) -> None:
        self._map: AppendOnlyMap[K, None] = AppendOnlyMap(dict.fromkeys(items))

    def added(self, item: K) -> AppendOnlySet[K]:
        """With one more."""
        grown: AppendOnlySet[K] = AppendOnlySet()
        grown._map = self._map.added(item, None)
        return grown

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
