"""One part of a broker divided among processes: it keeps frames for clients in other processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.memory.hub import Faults, Hub, MemoryTransport, Publication
from edge_sim.clock.clock import VirtualClock

_MOST = 2**20
"""Reserved places: more than a scenario has restarts."""


class HalfHub(Hub):
    """A Hub that keeps its clients' publications for other processes' hubs, which accept them at the same moment."""

    def __init__(self, clock: VirtualClock, faults: Faults | None = None, seed: int = 0) -> None:
        super().__init__(clock, faults, seed)
        self._outgoing: list[Publication] = []
        self._places = itertools.count(clock.place(_MOST))
        """Places of restarts among the events of a moment: they come first, as in one process."""

    def schedule_restart(self, time_s: float, restarted: Callable[[], None]) -> None:
        """Have `restarted` called before anything else that happens at that moment."""
        if isinstance(self.clock, VirtualClock):
            self.clock.at(time_s, restarted, next(self._places))

    def publish(self, sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        """Deliver a frame here, and keep it for the other processes."""
        given = self.published(sender, topic, frame, retain=retain)
        self._outgoing.append(given)
        self.accept(given)

    def taken(self) -> list[Publication]:
        """Return the publications since the last call, in order."""
        if not self._outgoing:
            return []
        found, self._outgoing = self._outgoing, []
        return found
