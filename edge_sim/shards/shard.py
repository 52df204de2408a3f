"""The devices of one process, which advance in time as far as the coordinator allows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from edge_sdk.errors import RunFailed
from edge_sdk.policy.priority import limit_threads
from edge_sim.clock.awake_devices import AwakeDevices
from edge_sim.clock.computation_queue import ComputationQueue
from edge_sim.clock.device_group import DeviceGroup
from edge_sim.clock.dormant import DormantKinds
from edge_sim.clock.silence import AwaitedExchange
from edge_sim.clock.whole_fleet import Figures, Wanted
from edge_sim.engines.base import NONE, Engine, ExactEngine, Untraced
from edge_sim.engines.choice import open_engine
from edge_sim.fleet.hardware import DeviceCost
from edge_sim.models.given_functions import receive_functions
from edge_sim.shards.device_world import Agenda, DeviceWorld, ProcessContext
from edge_sim.shards.messages import EVERYBODY, Sent, ShardProgress, ShardSetup


class Shard:
    """Some devices of a run.  The coordinator's process calls its public methods by name."""

    def __init__(self, setup: ShardSetup) -> None:
        """Build the devices.  Raises UsageError for a family or factory that does not exist here."""
        receive_functions(setup.functions)
        engine = _engine(setup)
        self._queue = ComputationQueue(engine)
        limit_threads(1)  # of numpy's library and torch, like a run in one process
        self._awake: AwakeDevices | None = None
        if setup.most_awake is not None and isinstance(engine, ExactEngine):
            self._awake = AwakeDevices(setup.most_awake, setup.run.memory_bytes)
        kinds = DormantKinds() if self._awake is not None else None
        process = ProcessContext(queue=self._queue, kinds=kinds, awake=self._awake)
        self._worlds = {device.kit.number: DeviceWorld(device, setup, process) for device in setup.devices}
        self._queue.ready()
        devices = [world.device for world in self._worlds.values()]
        self._group = DeviceGroup(devices, setup.spec, self._queue.settle)
        self._agenda = Agenda(self._worlds)
        self._now_s = 0.0

    def window(self, before_s: float, sent: Sequence[Sent]) -> ShardProgress:
        """Accept frames, carry out all events before a time, and return the progress."""
        due = self._delivered(sent)
        due.update(self._agenda.due(before_s))
        acted: set[int] = set()
        while due:
            acted |= due
            for number in sorted(due):
                self._worlds[number].run(before_s)
            self._queue.compute()
            for number in due:
                self._agenda.note(number)
                self._now_s = max(self._now_s, self._worlds[number].clock.now_s)
            due = {number for number in due if self._worlds[number].waiting}.union(self._agenda.due(before_s))
        return ShardProgress(self._published(acted), self._now_s, self._agenda.next_s, self._group.all_over())

    def _delivered(self, sent: Sequence[Sent]) -> set[int]:
        """Deliver frames; return the numbers of the devices that received one."""
        for number, given in sent:
            for world in self._worlds.values() if number == EVERYBODY else (self._worlds[number],):
                world.deliver(given)
        numbers = {each.number for each in sent}
        return set(self._worlds) if EVERYBODY in numbers else numbers

    def _published(self, acted: Collection[int]) -> list[Sent]:
        return [Sent(number, given) for number in acted for given in self._worlds[number].hub.taken()]

    # -- requests of the coordinator's process -----------------------------------------------------------------------

    def powered(self) -> int:
        """Implement DeviceGroup."""
        return self._group.powered()

    def spent(self, now_s: float) -> dict[str, DeviceCost]:
        """Implement DeviceGroup."""
        return self._group.spent(now_s)

    def board_figures(self, now_s: float, names: Collection[str]) -> dict[str, dict[str, float]]:
        """Implement DeviceGroup."""
        return self._group.board_figures(now_s, names)

    def hardware(self, now_s: float) -> dict[str, dict[str, Any]]:
        """Implement DeviceGroup."""
        return self._group.hardware(now_s)

    def unfinished_s(self, now_s: float) -> float:
        """Implement DeviceGroup."""
        return self._group.unfinished_s(now_s)

    def why_silent(self, number: int, exchange: AwaitedExchange) -> str:
        """Implement DeviceGroup."""
        return self._group.why_silent(number, exchange)

    def copy_stores(self, folder: Path, last: Path) -> None:
        """Implement DeviceGroup."""
        self._group.copy_stores(folder, last)

    def untraced(self) -> Untraced:
        """Implement DeviceGroup."""
        return self._group.untraced() | (self._awake.untraced if self._awake is not None else NONE)

    def dormant(self) -> list[str]:
        """Implement DeviceGroup."""
        return self._group.dormant()

    def measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        """Implement DeviceGroup."""
        return self._group.measure(rounds, state, wanted)

    def model_states(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the states of these devices' models."""
        return [self._worlds[number].device.participant.context.bench.model.state_bytes() for number in numbers]


def _engine(setup: ShardSetup) -> Engine:
    if any(device.kit.needs_torch for device in setup.devices):
        # torch is imported only if a device needs it
        from edge_sim.engines.torch_threads import use_exact_arithmetic, use_one_thread

        use_one_thread()
        use_exact_arithmetic()
    return open_engine(setup.run, setup.devices, setup.spec, threads=1)


def tried(act: Callable[[], Any]) -> tuple[bool, Any]:
    """Return (whether a function raised, its result or the error in a form that another process can read)."""
    try:
        return False, act()
    except Exception as error:  # noqa: BLE001  # raised again by the caller of `answer`
        return True, _sendable(error)


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can unpickle."""
    if isinstance(error, MemoryError):
        return MemoryError(str(error))  # numpy's has other arguments
    try:
        copy.copy(error)  # rebuilds it like unpickling
    except Exception:  # noqa: BLE001  # its class has other arguments
        return RunFailed(str(error) or type(error).__name__)
    return error
