"""The subscriptions of a broker as a tree of topic levels, in which a search takes time by levels, not by clients."""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class SubscriptionTree(Generic[C]):
    """Clients by the patterns that they subscribed to, under the rules of MQTT, which `topics.matches` describes."""

    def __init__(self) -> None:
        self.below: dict[str, SubscriptionTree[C]] = {}
        """The subtrees for the next topic level."""
        self.here: list[C] = []
        """The clients whose pattern ends at this node."""

    def add(self, pattern: str, client: C) -> None:
        """Add one subscription."""
        node = self
        for level in pattern.split("/"):
            node = node.below.setdefault(level, SubscriptionTree())
        node.here.append(client)

    def remove(self, pattern: str, client: C) -> None:
        """Remove one subscription.  Raises KeyError or ValueError if there is none."""
        path = [self]
        levels = pattern.split("/")
        for level in levels:
            path.append(path[-1].below[level])
        path[-1].here.remove(client)
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            below = node.below[level]
            if not below.here and not below.below:
                del node.below[level]

    def find(self, topic: str) -> list[C]:
        """Return the clients that are subscribed to a topic, once for each pattern that covers it."""
        levels = topic.split("/")
        found: list[C] = []
        nodes = [self]
        for depth, level in enumerate(levels):
            wildcards = depth > 0 or not topic.startswith("$")
            below: list[SubscriptionTree[C]] = []
            for node in nodes:
                tree = node.below
                if wildcards and "#" in tree:
                    found += tree["#"].here
                below += [tree[name] for name in ((level, "+") if wildcards else (level,)) if name in tree]
            nodes = below
        for node in nodes:
            found += node.here
            if "#" in node.below:
                found += node.below["#"].here
        return found
