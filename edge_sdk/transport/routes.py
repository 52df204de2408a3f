"""Who hears what, and what somebody hears, without asking everybody: a tree of topic levels.

One tree holds subscriptions and finds those that cover a topic; another holds topics and finds those that a
subscription covers.  Both follow the rules of MQTT as `topics.matches` states them, in time that no crowd lengthens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass
class _Node(Generic[K]):
    """What ends here, in the order in which it came, and what goes on from here, by the next level."""

    keys: dict[K, None] = field(default_factory=dict)
    further: dict[str, _Node[K]] = field(default_factory=dict)


class Tree(Generic[K]):
    """Keys at patterns, or at topics."""

    def __init__(self) -> None:
        self._root: _Node[K] = _Node()

    def add(self, path: str, key: K) -> None:
        """Put a key at a pattern or topic."""
        node = self._root
        for level in path.split("/"):
            node = node.further.setdefault(level, _Node())
        node.keys[key] = None

    def remove(self, path: str, key: K) -> None:
        """Take it away again, and the branch with it where nothing else is on it."""
        _prune(self._root, path.split("/"), key)

    def covering(self, topic: str) -> set[K]:
        """The keys at patterns that cover a topic."""
        return {key for node in _covering(self._root, topic.split("/"), wild=not topic.startswith("$")) for key in node}

    def covered(self, pattern: str) -> set[K]:
        """The keys at topics that a pattern covers."""
        return {key for node in _covered(self._root, pattern.split("/"), first=True) for key in node}


def _covering(node: _Node[K], levels: list[str], *, wild: bool) -> Iterator[dict[K, None]]:
    if wild and "#" in node.further:
        yield node.further["#"].keys
    if not levels:
        yield node.keys
        return
    for level in (levels[0], "+") if wild and levels[0] != "+" else (levels[0],):
        if level in node.further and level != "#":
            yield from _covering(node.further[level], levels[1:], wild=True)


def _covered(node: _Node[K], levels: list[str], *, first: bool) -> Iterator[dict[K, None]]:
    if not levels:
        yield node.keys
        return
    if levels == ["#"]:
        yield from _below(node, first=first)
        return
    for level, further in node.further.items():
        if level == levels[0] or (levels[0] == "+" and not (first and level.startswith("$"))):
            yield from _covered(further, levels[1:], first=False)


def _below(node: _Node[K], *, first: bool) -> Iterator[dict[K, None]]:
    yield node.keys
    for level, further in node.further.items():
        if not (first and level.startswith("$")):
            yield from _below(further, first=False)


def _prune(node: _Node[K], levels: list[str], key: K) -> None:
    if not levels:
        node.keys.pop(key, None)
        return
    further = node.further.get(levels[0])
    if further is not None:
        _prune(further, levels[1:], key)
        if not further.keys and not further.further:
            del node.further[levels[0]]
