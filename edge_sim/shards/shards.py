"""All shards of a run, seen from the coordinator's process, and which runs can be divided into shards."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edge_sdk.boards.profiles import load_link
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.awake_devices import MOST_AWAKE
from edge_sim.config.settings import RunTable
from edge_sim.fleet.feasible import DORMANT_FROM
from edge_sim.fleet.fleet import Device, Fleet
from edge_sim.models.given_functions import sent_functions
from edge_sim.shards.messages import EVERYBODY, Sent, ShardLost, ShardProgress, ShardSetup
from edge_sim.shards.shard import Shard


def why_together(fleet: Fleet, faults: Faults | None, *, resumed: bool) -> str:
    """Return why one process must hold all devices of a run, or an empty text if several can."""
    if os.name != "posix":
        return "this system does not hand files down to processes"
    if resumed:
        return "resumed runs are not divided, because what resuming costs is counted over all devices"
    if faults is not None and faults.disconnect:
        return "with faults.disconnect a frame of one device instantly cuts off all others"
    at_once = [kit.link for kit in (device.kit for device in fleet.devices) if not min(both_ways_s(kit.link))]
    if at_once:
        return f"frames on the link {at_once[0]!r} take no time"
    return ""


def both_ways_s(link: str) -> tuple[float, float]:
    """Return the time that an empty frame takes up and down."""
    found = load_link(link)
    return found.transfer_s(0, up=True), found.transfer_s(0, up=False)


_FRAMES_FLOPS = 1e7
"""A device's cost in a round beside its training, in floating-point operations: about a millisecond."""


class AskedShard(Protocol):
    """A Shard that receives requests and answers them in order."""

    @property
    def pid(self) -> int:
        """The id of its process."""

    def ask(self, name: str, *arguments: object) -> None:
        """Call a method of the Shard; `answer` returns its result."""

    def answer(self) -> Any:
        """Wait for the oldest answer; the first one comes once the devices are built.

        Raises what the shard raised, or ShardLost.
        """

    def drain(self) -> None:
        """Wait for all unread answers, and ignore their errors."""

    def close(self) -> int:
        """End it; return the peak resident memory of its process in bytes."""


class Carrier(Protocol):
    """Starts shards: as processes of this machine, or as actors on Ray."""

    def start(self, setup: ShardSetup) -> AskedShard:
        """Start a shard with these devices."""

    def close(self) -> None:
        """Release the machine or cluster, after all shards are closed."""


@dataclass(slots=True, eq=False)
class _Handle:
    """One shard, its last progress, and the frames waiting for it."""

    process: AskedShard
    up_s: float
    """Minimum time of a frame from its devices to the coordinator."""
    down_s: float
    """Minimum time of a frame to one of its devices."""
    queue: list[Sent] = field(default_factory=list)
    """Frames to send it with the next window."""
    told_s: float = 0.0
    """Time of its devices' next event, as last reported."""
    now_s: float = 0.0
    """Time of its devices' last event."""
    over: bool = False

    @property
    def next_s(self) -> float:
        """The earliest time at which any of its devices can act."""
        return min(self.told_s, self.queue[0].given.at_s + self.down_s) if self.queue else self.told_s

    def told(self, progress: ShardProgress) -> list[Sent]:
        """Record its progress; return its devices' publications."""
        self.told_s, self.now_s, self.over = progress.next_s, progress.now_s, progress.over
        return progress.sent


class Shards:
    """The processes that hold the devices of a fleet; the first one is this process."""

    def __init__(
        self,
        fleet: Fleet,
        count: int,
        *,
        faults: Faults | None,
        faults_seed: int,
        run: RunTable,
        carrier: Carrier,
        dormant_from: int = DORMANT_FROM,
    ) -> None:
        """count: number of shards.  run: how each one computes.  carrier: starts all but the first.

        dormant_from: the number of devices from which on those without work have no agent in memory.

        Raises UsageError for a model that cannot be built.
        """
        self.peak_bytes = 0
        """Peak resident memory of all shards together, in bytes; known once they are closed."""
        self._carrier = carrier
        count = min(count, len(fleet.devices))
        policy = fleet.federation.policy
        most_awake = -(-max(MOST_AWAKE, policy.participants or policy.expected) // count)
        share_bytes = None if run.memory_bytes is None else max(1, run.memory_bytes // count)
        setup = ShardSetup(
            devices=(),
            spec=fleet.federation.spec,
            scenario=fleet.scenario,
            faults=faults,
            faults_seed=faults_seed,
            run=replace(run, memory_bytes=share_bytes),
            most_awake=most_awake if len(fleet.devices) >= dormant_from else None,
            modules=tuple(sys.path),
            functions=sent_functions({name for device in fleet.devices for name in device.kit.brought}),
        )
        owners = divided(_costs(fleet), count)
        self._handles: list[_Handle] = []
        self._of: dict[int, _Handle] = {}
        for shard in sorted(set(owners.values())):
            own = tuple(device for device in fleet.devices if owners[device.kit.number] == shard)
            asked = carrier.start if self._handles else OwnShard
            handle = _Handle(asked(replace(setup, devices=own)), *_least_s(own))
            self._handles.append(handle)
            self._of |= dict.fromkeys((device.kit.number for device in own), handle)

    def begin(self) -> None:
        """Wait until all devices are built.  Raises what a shard raised."""
        for each in self._handles:
            each.process.answer()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes beside this one."""
        return tuple(each.process.pid for each in self._handles[1:])

    @property
    def now_s(self) -> float:
        """Time of the last event on any device."""
        return max(each.now_s for each in self._handles)

    @property
    def next_s(self) -> float:
        """The earliest time at which any device can act, or infinity if all wait for a frame."""
        return min(each.next_s for each in self._handles)

    @property
    def next_arrival_s(self) -> float:
        """The earliest time at which a future publication of a device can reach the coordinator."""
        return min(each.next_s + each.up_s for each in self._handles)

    @property
    def over(self) -> bool:
        """Whether all devices are over or excused."""
        return all(each.over for each in self._handles)

    def send(self, sent: Sent) -> None:
        """Send a frame with the next window."""
        for each in self._handles if sent.number == EVERYBODY else (self._of[sent.number],):
            each.queue.append(sent)

    def pass_time(self, before_s: float) -> list[Sent]:
        """Let all shards carry out all events before a time; return their publications in order."""
        asked = [each for each in self._handles if each.queue or each.told_s < before_s]
        for each in asked:
            queue, each.queue = each.queue, []
            each.process.ask("window", before_s, queue)
        found = [sent for each in asked for sent in each.told(each.process.answer())]
        return sorted(found, key=lambda sent: (sent.given.at_s, sent.number))

    def ask(self, name: str, *arguments: object) -> list[Any]:
        """Call a method of every Shard; return the answers in the order of the shards."""
        for each in self._handles:
            each.process.ask(name, *arguments)
        return [each.process.answer() for each in self._handles]

    def ask_each(self, name: str, numbers: Sequence[int], *arguments: Any, of: Sequence[Any] = ()) -> list[Any]:
        """Call a method that answers for a list of devices in every Shard that holds some of them.

        Its last argument is the list: the device numbers, or their entries of `of`.  Return the answers in
        the order of the numbers.
        """
        places: dict[_Handle, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(self._of[number], []).append(place)
        for each, own in places.items():
            each.process.ask(name, *arguments, [(of or numbers)[place] for place in own])
        found: dict[int, Any] = {}
        for each in filter(places.__contains__, self._handles):
            found |= zip(places[each], each.process.answer(), strict=True)
        return [found[place] for place in range(len(numbers))]

    def ask_one(self, number: int, name: str, *arguments: object) -> Any:
        """Call a method with a device's number in the Shard that holds it."""
        process = self._of[number].process
        process.ask(name, number, *arguments)
        return process.answer()

    def drain(self) -> None:
        """Wait for all unread answers, and ignore their errors."""
        for each in self._handles:
            each.process.drain()

    def close(self) -> None:
        """End all processes."""
        self.peak_bytes += sum(each.process.close() for each in self._handles)
        self._carrier.close()


def divided(costs: Mapping[int, float], count: int) -> dict[int, int]:
    """Return the shard of each device: the costliest device first, each to the shard with the lowest cost so far."""
    load = [0.0] * count
    owners: dict[int, int] = {}
    for number, cost in sorted(costs.items(), key=lambda each: -each[1]):
        owners[number] = owner = load.index(min(load))
        load[owner] += cost
    return owners


def _costs(fleet: Fleet) -> Mapping[int, float]:
    """Return the estimated cost of a round of each device, by number."""
    flops: dict[tuple[object, ...], int] = {}
    found = {}
    for device in fleet.devices:
        kit = device.kit
        kind = kit.family, kit.size, kit.feature_dim
        if kind not in flops:
            flops[kind] = kit.model(device.public).spec.flops_per_sample
        found[kit.number] = flops[kind] * device.held.counts.train + _FRAMES_FLOPS
    return found


def _least_s(devices: Sequence[Device]) -> tuple[float, float]:
    """Return the time that an empty frame takes up and down on the fastest of these devices' links."""
    ups, downs = zip(*(both_ways_s(link) for link in {device.kit.link for device in devices}), strict=True)
    return min(ups), min(downs)


# -- The shard in the coordinator's process: it computes while the other processes do ---------------------------------


class OwnShard:
    """An AskedShard of this process; it carries out a request when its answer is read.

    All shards are asked before its answer is read, so the others compute meanwhile.
    """

    def __init__(self, setup: ShardSetup) -> None:
        self._setup = setup
        self._shard: Shard | None = None
        self._asked: deque[tuple[str, tuple[object, ...]]] = deque()
        self._halfway = False
        """Whether an interrupt ended a call, which leaves the devices' state incomplete."""

    @property
    def pid(self) -> int:
        """The id of this process."""
        return os.getpid()

    def ask(self, name: str, *arguments: object) -> None:
        """Queue a call of a method of the Shard for `answer`."""
        self._asked.append((name, arguments))

    def answer(self) -> Any:
        """Build the devices, or carry out the oldest request; return its result.

        Raises what it raises, and ShardLost after an interrupt in the middle of it.
        """
        if self._halfway:
            raise ShardLost("an interrupt came while devices of this process were computing")
        if self._shard is None:
            self._shard = Shard(self._setup)
            return None
        name, arguments = self._asked.popleft()
        try:
            return getattr(self._shard, name)(*arguments)
        except Exception:
            raise
        except BaseException:
            self._halfway = True
            raise

    def drain(self) -> None:
        """Carry out all requests, and ignore their errors."""
        while self._asked and not self._halfway:
            with suppress(Exception):
                self.answer()

    def close(self) -> int:
        """Return 0: its memory counts as this process's."""
        return 0
