"""One side of a broker that is divided among processes: frames to clients elsewhere are put out for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from edge_sdk.protocol.frame_parts import Frame
from edge_sdk.transport.memory.hub import Faults, Hub, MemoryTransport, Publication
from edge_sim.clock.clock import VirtualClock

_MOST = 2**20
"""More restarts than a scenario has."""


class HalfHub(Hub):
    """A Hub that keeps what its clients publish for the hubs of other processes, which accept it at the same moment."""

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
        """Deliver a frame here, and keep it for the others."""
        given = self.published(sender, topic, frame, retain=retain)
        self._outgoing.append(given)
        self.accept(given)

    def taken(self) -> list[Publication]:
        """Return what was published since the last call, in order."""
        if not self._outgoing:
            return []
        found, self._outgoing = self._outgoing, []
        return found
