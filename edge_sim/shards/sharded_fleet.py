"""A run whose devices live in shards: this process has the coordinator, and sets how far each shard may advance.

The coordinator never passes the time of a device's next event, nor a shard the earliest time at which the coordinator
could publish something to it.  A frame takes time on the air, so a window is at least that long, and all shards work
on it in parallel.  Frames are accepted at the moment of virtual time at which they were published, so the broker's
draws, orders and counts are those of one process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.record.run_record import FleetWork
from coordinator.serving.server import Server
from edge_sdk.errors import RunFailed
from edge_sdk.models.base import Model
from edge_sdk.protocol import topics
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.checkpoint import Checkpoints, held_back, how_to_go_on
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.resumption import resumption_point
from edge_sim.clock.scenario_faults import SwitchableDevice, schedule_faults
from edge_sim.clock.silence import AwaitedExchange, SilenceCauses
from edge_sim.clock.virtual_fleet import VirtualCoordinator, cut_power, total_work
from edge_sim.clock.whole_fleet import Figures, Wanted, WholeFleet
from edge_sim.config.settings import AUTO, Config, RunTable
from edge_sim.engines.base import NONE, MethodWrapper, unchanged
from edge_sim.fleet.feasible import DORMANT_FROM
from edge_sim.fleet.fleet import Device, Fleet
from edge_sim.fleet.hardware import DeviceCost
from edge_sim.shards.device_world import HalfHub
from edge_sim.shards.messages import EVERYBODY, Sent, ShardLost
from edge_sim.shards.ray_shard import RayCluster
from edge_sim.shards.shard_process import ShardProcesses
from edge_sim.shards.shards import Carrier, Shards

_MODELS_AT_ONCE = 16
"""Models fetched at once when the run is over."""


def divided_run(config: Config, fleet: Fleet, **more: Any) -> ShardedFleet:
    """Return a run on the processes of its table: on this machine, or on Ray.  more: see ShardedFleet."""
    run = config.run
    if run.cluster is None:
        count = os.cpu_count() or 1 if run.processes in (None, AUTO) else int(run.processes or 1)
        more |= {"carrier": ShardProcesses()}
    else:
        cluster = RayCluster(run)
        count = cluster.count
        more |= {"carrier": cluster}
        if run.ray_fold:
            from edge_sim.shards.ray_fold import fold_on_ray  # Ray is loaded and connected by now

            more |= {"wrap_method": fold_on_ray}
    return ShardedFleet(fleet, count, run=run, faults=config.faults, faults_seed=config.faults_seed, **more)


class ShardedFleet:
    """A run in virtual time whose devices are in other processes."""

    def __init__(
        self,
        fleet: Fleet,
        count: int,
        *,
        ledger: Ledger,
        faults: Faults | None = None,
        faults_seed: int = 0,
        observer: RunObserver | None = None,
        checkpoints: Checkpoints | None = None,
        new_server: Callable[..., Server] = Server,
        run: RunTable,
        carrier: Carrier,
        wrap_method: MethodWrapper = unchanged,
        dormant_from: int = DORMANT_FROM,
    ) -> None:
        """count: number of processes for the devices.  run: how each one computes.  carrier: starts them.

        new_server: makes the coordinator.  wrap_method: decides where uploads are added up.  dormant_from: as for
        VirtualFleet.
        """
        self.clock = VirtualClock()
        self.hub = HalfHub(self.clock, faults, faults_seed)
        self.devices: tuple[SwitchableDevice, ...] = ()
        self.resumed: Mapping[str, float] = {}
        self._checkpoints, self._fleet = checkpoints, fleet
        self._numbers = {device.kit.id: device.kit.number for device in fleet.devices}
        self._spent: dict[str, DeviceCost] = {}
        """The costs at the end of the run."""
        self.untraced = NONE
        """The models that trained untraced; known at the end of the run."""
        self._whole_fleet = WholeFleet(lambda: self.server, fleet.measured_numbers, self._measure)
        causes = SilenceCauses(self.clock, self.hub, self._why_silent)
        observer = ObserverGroup(*filter(None, (observer,)), self._whole_fleet, causes)
        self._coordinator = VirtualCoordinator(
            fleet,
            ledger,
            self.hub,
            self.clock,
            observer,
            work=self._work,
            new_server=new_server,
            why_silent=causes,
            wrap_method=wrap_method,
        )
        schedule_faults(self, fleet.scenario, fleet.federation.spec.seed)
        self.shards = Shards(
            fleet,
            count,
            faults=faults,
            faults_seed=faults_seed,
            run=run,
            carrier=carrier,
            dormant_from=dormant_from,
        )
        observer.simulated(lambda names: self._by_device("board_figures", names))

    @property
    def server(self) -> Server:
        """The coordinator's server since its last start."""
        return self._coordinator.server

    @property
    def peak_bytes(self) -> int:
        """Peak resident memory of the shards, in bytes; known once they are closed."""
        return self.shards.peak_bytes

    def run(self) -> None:
        """Run until the run is over.

        Raises RunFailed if no event is left before that.  An interrupt leaves a checkpoint, unless it comes a second
        time before the shards have answered.
        """
        try:
            self.shards.begin()
            self._run()
        except ShardLost as error:
            raise RunFailed(f"{error}, then {how_to_go_on(self._checkpoints)}") from None

    def _run(self) -> None:
        self._coordinator.server.connect()
        try:
            with held_back() as interrupt:
                self._pass_time(interrupt)
            self._whole_fleet.complete()
            self._spent = self._by_device("spent")
            self.untraced = NONE.union(*self.shards.ask("untraced"))
        except ShardLost:
            raise  # nothing can be saved: the last checkpoint stays
        except BaseException:
            with suppress(ShardLost):
                self.shards.drain()
                self._save()
                self._spent = self._by_device("spent")
            raise

    def close(self) -> None:
        """End the shards, and close the server."""
        self.shards.close()
        self.server.close()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _pass_time(self, between_windows: Callable[[], None]) -> None:
        while not self._coordinators_turn():
            between_windows()
            if self._checkpoints is not None and self._checkpoints.due():
                self._save()
            if self._shards_turn():
                return

    def _coordinators_turn(self) -> bool:
        """Carry out the events here before any device's next event; return whether the run is over."""
        clock = self.clock
        while (next_s := clock.next_s) <= self.shards.next_s and next_s < math.inf:
            if next_s > clock.now_s:
                self.server.observer.waited(self.server.record)
            clock.step()
            self._pass_on()
            if self.server.over and (self.server.rounds.reason or self.shards.over):
                return True
        return False

    def _shards_turn(self) -> bool:
        """Let the shards advance as far as they may; return whether the run is over.

        Once the coordinator is over, they advance moment by moment: the run ends when the last device is over.
        """
        first_s = self.shards.next_s
        if first_s == math.inf:
            raise RunFailed("the simulated fleet came to a standstill")
        if self.server.over:
            self._advance(math.nextafter(first_s, math.inf))
        else:
            self._advance(min(self.clock.next_s, self.shards.next_arrival_s))
        if self.server.over and self.shards.over:
            self.clock.now_s = max(self.clock.now_s, first_s)
            return True
        return False

    def _advance(self, before_s: float) -> None:
        """Let the shards carry out all events before a time; accept their frames here, at the times of publication."""
        for _, given in self.shards.pass_time(before_s):
            self.clock.at(given.at_s, partial(self.hub.accept, given))

    def _pass_on(self) -> None:
        """Give the shards the coordinator's publications."""
        for given in self.hub.taken():
            device = topics.receiver(given.topic)
            self.shards.send(Sent(EVERYBODY if device is None else self._numbers[device], given))

    def lose_coordinator(self, at_s: float, for_s: float) -> None:
        """Implement FaultyFleet."""
        cut_power(self._coordinator, self.clock, at_s, for_s)

    # -- figures of devices --------------------------------------------------------------------------------------------

    @property
    def virtual_s(self) -> float:
        """Virtual seconds of the run."""
        return self.clock.now_s

    @property
    def spent(self) -> dict[str, DeviceCost]:
        """The cost of the run so far for each device, by id."""
        return self._spent or self._by_device("spent")

    def powered(self) -> tuple[int, int]:
        """(number of devices switched on, number of devices) of the run."""
        self._catch_up()
        return sum(self.shards.ask("powered")), len(self._fleet.devices)

    def models(self) -> Iterator[tuple[Device, Model]]:
        """Yield each device that has had work, and a copy of its model, in the order of their numbers."""
        dormant = self._dormant()
        devices = [device for device in self._fleet.devices if device.kit.id not in dormant]
        for begin in range(0, len(devices), _MODELS_AT_ONCE):
            some = devices[begin : begin + _MODELS_AT_ONCE]
            states = self.shards.ask_each("model_states", [device.kit.number for device in some])
            for device, state in zip(some, states, strict=True):
                model = device.kit.model(device.public)
                model.load_state(state)
                yield device, model

    def _dormant(self) -> frozenset[str]:
        return frozenset(name for names in self.shards.ask("dormant") for name in names)

    def _work(self) -> FleetWork:
        return total_work(self._by_device("spent").values())

    def _by_device(self, name: str, *arguments: object) -> dict[str, Any]:
        """Ask devices for their present figures; return them by id, in the order of their numbers."""
        self._catch_up()
        found: dict[str, Any] = {}
        for each in self.shards.ask(name, self._now_s, *arguments):
            found |= each
        return {name: found[name] for name in self._numbers if name in found}

    def _measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        self._catch_up()
        return self.shards.ask_each("measure", [each.number for each in wanted], rounds, state, of=wanted)

    def _why_silent(self, name: str, exchange: AwaitedExchange) -> str:
        self._catch_up()
        found: str = self.shards.ask_one(self._numbers[name], "why_silent", exchange)
        return found

    def _catch_up(self) -> None:
        """Bring the shards to this moment: they accept all frames published until now."""
        self._pass_on()
        self._advance(self.clock.now_s)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the state that neither the ledger nor the devices' stores hold, as VirtualFleet does."""
        hardware = self._by_device("hardware")
        return {
            "now_s": self._now_s,
            "begun_s": self.server.record.started_s,
            "hardware": hardware,
            "unclosed": saved_record.unclosed(self.server.record),
            "open": resumption_point(self.server, max(self.shards.ask("unfinished_s", self._now_s))),
            "resumed": self.resumed,
            "dormant": sorted(self._dormant()),
        }

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(self.server.ledger, self._copy_stores, self.to_json())

    def _copy_stores(self, folder: Path, last: Path) -> None:
        self.shards.ask("copy_stores", folder, last)

    @property
    def _now_s(self) -> float:
        """The present time: of this process, or between two windows, of the most advanced shard."""
        return max(self.clock.now_s, self.shards.now_s)
