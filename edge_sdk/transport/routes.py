"""Who hears a topic: subscriptions as a tree of topic levels, so that a frame costs its levels, not all clients."""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class Routes(Generic[C]):
    """Clients by the patterns that they subscribed to, under MQTT's rules (see topics.matches)."""

    def __init__(self) -> None:
        self._below: dict[str, Routes[C]] = {}
        self._here: list[C] = []

    def add(self, pattern: str, client: C) -> None:
        """One subscription."""
        node = self
        for level in pattern.split("/"):
            node = node._below.setdefault(level, Routes())
        node._here.append(client)

    def remove(self, pattern: str, client: C) -> None:
        """Take one subscription back.  Raises KeyError or ValueError where there is none."""
        path = [self]
        levels = pattern.split("/")
        for level in levels:
            path.append(path[-1]._below[level])
        path[-1]._here.remove(client)
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            below = node._below[level]
            if not below._here and not below._below:
                del node._below[level]

    def find(self, topic: str) -> list[C]:
        """Everybody who hears a topic, once per subscription that covers it."""
        levels = topic.split("/")
        found: list[C] = []
        nodes = [self]
        for depth, level in enumerate(levels):
            wildcards = depth > 0 or not topic.startswith("$")
            below: list[Routes[C]] = []
            for node in nodes:
                tree = node._below
                if wildcards and "#" in tree:
                    found += tree["#"]._here
                below += [tree[name] for name in ((level, "+") if wildcards else (level,)) if name in tree]
            nodes = below
        for node in nodes:
            found += node._here
            if "#" in node._below:
                found += node._below["#"]._here
        return found
