"""One device with its own clock and half of the broker.

Devices meet only through the coordinator, so each may be at a different time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edge_sdk.protocol.frames.codec import CommonKnowledge
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.memory.hub import Faults, Hub, MemoryTransport, Publication
from edge_sim.clock.awake_devices import AwakeDevices
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.computation_queue import ComputationQueue
from edge_sim.clock.dormant import DormantKinds
from edge_sim.clock.scenario_faults import give_faults, schedule_broker_faults
from edge_sim.clock.virtual_device import Surroundings, VirtualDevice
from edge_sim.fleet.fleet import Device
from edge_sim.shards.messages import ShardSetup

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


_MOST_FRAMES = 2**48
"""Reserved places: more than a device receives frames."""


@dataclass(slots=True, kw_only=True)
class ProcessContext:
    """What the devices of a process share."""

    queue: ComputationQueue
    common: CommonKnowledge = field(default_factory=CommonKnowledge)
    kinds: DormantKinds | None
    """Which devices may be dormant, or None if none may."""
    awake: AwakeDevices | None
    """Puts devices to sleep again, or None if none may sleep."""


class DeviceWorld:
    """A device and all its events."""

    def __init__(self, device: Device, setup: ShardSetup, process: ProcessContext) -> None:
        self.clock, self._queue = VirtualClock(), process.queue
        self.hub = HalfHub(self.clock, setup.faults, setup.faults_seed)
        self.waiting = 0
        """Number of frames from elsewhere that are not accepted yet."""
        spec = setup.spec
        shared = Surroundings(
            self.hub,
            self.clock,
            process.queue,
            federation=spec.federation,
            common=process.common,
            kinds=process.kinds,
            awake=process.awake,
        )
        self.device = VirtualDevice(device, None, shared)
        schedule_broker_faults(self.clock, self.hub, setup.scenario)
        self.clock.at(self.clock.now_s, self._connect)
        self._places = itertools.count(self.clock.place(_MOST_FRAMES))
        """Places of frames from elsewhere: at one moment the coordinator comes before the device, as in one process."""
        give_faults(self.device, setup.scenario, spec.seed)

    def _connect(self) -> None:
        if self.device.powered:
            self.device.connect()

    def deliver(self, given: Publication) -> None:
        """Take in a frame published elsewhere, at a time that is not in the past."""
        self.waiting += 1
        self.clock.at(given.at_s, lambda: self._accept(given), next(self._places))

    def _accept(self, given: Publication) -> None:
        self.waiting -= 1
        self.hub.accept(given)

    def run(self, before_s: float) -> None:
        """Carry out all events before a time, and accept all frames; stop where a computation must be done first."""
        clock = self.clock
        while (next_s := clock.next_s) < before_s or self.waiting:
            device = self.device
            if next_s > clock.now_s and not device.sleeps and self._queue.waits_for(device.participant):
                return
            clock.step()


class Agenda:
    """The times of the worlds' next events, so that worlds without an event soon cost nothing."""

    def __init__(self, worlds: Mapping[int, DeviceWorld]) -> None:
        """worlds: by device number."""
        self._worlds = worlds
        self._noted: dict[int, float] = {}
        """The next known event time of each world."""
        self._times: list[tuple[float, int]] = []
        """A heap of these times; outdated ones are skipped."""
        for number in worlds:
            self.note(number)

    def note(self, number: int) -> None:
        """Update the next event time of a world."""
        next_s = self._worlds[number].clock.next_s
        if self._noted.get(number) != next_s:
            self._noted[number] = next_s
            heapq.heappush(self._times, (next_s, number))

    @property
    def next_s(self) -> float:
        """Time of the first event of all, or infinity without one."""
        while self._times and self._noted.get(self._times[0][1]) != self._times[0][0]:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else math.inf

    def due(self, before_s: float) -> list[int]:
        """Remove and return the worlds with events before a time; `note` puts them back."""
        found = []
        while self.next_s < before_s:
            _, number = heapq.heappop(self._times)
            del self._noted[number]
            found.append(number)
        return found
