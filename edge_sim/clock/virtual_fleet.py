"""A fleet on a virtual clock: N agents and one server on a memory hub, in one thread; results repeat bit for bit.

The objects are those of a deployment; only time is simulated.  The board's profile gives the time of computing, the
link's profile the time of frames, and the clock jumps from event to event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.ledger import Ledger
from coordinator.record import saved_record
from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.record.run_record import NO_WORK, FleetWork, nobody_knows
from coordinator.serving.equipment import ready_method
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.server import Server
from edge_sdk.device.store import Store
from edge_sdk.errors import RunFailed
from edge_sdk.models.base import Model
from edge_sdk.protocol.frames.codec import CommonKnowledge
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Faults, Hub
from edge_sim.clock.awake_devices import MOST_AWAKE, AwakeDevices
from edge_sim.clock.checkpoint import Checkpoints, held_back
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.computation_queue import ComputationQueue
from edge_sim.clock.device_group import DeviceGroup
from edge_sim.clock.dormant import DormantKinds
from edge_sim.clock.resumption import Resumption, resumption_point
from edge_sim.clock.scenario_faults import schedule_faults
from edge_sim.clock.silence import AwaitedExchange, SilenceCauses
from edge_sim.clock.store_parts import KeptStores
from edge_sim.clock.virtual_device import Surroundings, VirtualDevice
from edge_sim.clock.waker import Waker
from edge_sim.clock.whole_fleet import Figures, Wanted, WholeFleet
from edge_sim.engines.base import Engine, ExactEngine, MethodWrapper, Untraced, unchanged
from edge_sim.fleet.calendar import timetable
from edge_sim.fleet.feasible import DORMANT_FROM
from edge_sim.fleet.fleet import Device, Fleet
from edge_sim.fleet.hardware import DeviceCost, FleetTotals


class VirtualFleet:
    """A run in virtual time."""

    peak_bytes = 0
    """Resident memory of other processes, which hold no devices here."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        ledger: Ledger,
        faults: Faults | None = None,
        faults_seed: int = 0,
        observer: RunObserver | None = None,
        stores: Mapping[str, Store] | None = None,
        checkpoints: Checkpoints | None = None,
        public_server: PublicSetServer | None = None,
        caches: Path | None = None,
        state: Mapping[str, Any] | None = None,
        new_server: Callable[..., Server] = Server,
        engine: Engine | None = None,
        wrap_method: MethodWrapper = unchanged,
        secured: Path | None = None,
        dormant_from: int = DORMANT_FROM,
        most_awake: int = MOST_AWAKE,
        memory_bytes: int | None = None,
    ) -> None:
        """caches: a folder into which devices fetch the public set from the coordinator, or None to give them the set.

        secured: a folder with a lab in `lab` beside an identity folder for each device, or None for unsigned frames.

        state: what `to_json` returned, for a resumed run.  new_server: makes the coordinator, such as one that writes
        a trace.  engine: default: ExactEngine.  wrap_method: decides where uploads are added up.

        dormant_from: the fleet size from which devices without work have no agent in memory.  most_awake: the number
        of devices with earlier work that keep their agents.  memory_bytes: the RAM for the models of the others;
        further ones are in a file.
        """
        policy = fleet.federation.policy
        state = state or {"now_s": 0.0, "begun_s": None, "hardware": {}}
        self.clock = VirtualClock(state["now_s"])
        self.hub = Hub(self.clock, faults, faults_seed)
        self._checkpoints, self._dormant_from = checkpoints, dormant_from
        self._awake = AwakeDevices(max(most_awake, policy.participants or policy.expected), memory_bytes)
        self._engine = engine or ExactEngine()
        self._queue = ComputationQueue(self._engine)
        self.devices: tuple[VirtualDevice, ...] = ()
        self._whole_fleet = WholeFleet(lambda: self.server, fleet.measured_numbers, self._measure)
        causes = SilenceCauses(self.clock, self.hub, self._why_silent)
        observer = ObserverGroup(*filter(None, (observer,)), self._whole_fleet, causes)
        self._coordinator = VirtualCoordinator(
            fleet,
            ledger,
            self.hub,
            self.clock,
            observer,
            public_server=public_server,
            work=self._work,
            new_server=new_server,
            wrap_method=wrap_method,
            begun_s=state.get("begun_s"),  # older checkpoints lack these
            unclosed=state.get("unclosed"),
            lab=secured / "lab" if secured else None,
            why_silent=causes,
        )
        self.devices = self._new_devices(fleet, stores or {}, caches, secured)
        self._by_id = {each.device.kit.id: each for each in self.devices}
        for each in self.devices:
            if each.device.kit.id in state["hardware"]:
                each.hardware.restore(state["hardware"][each.device.kit.id], self.clock.now_s)
        self._totals = FleetTotals([each.hardware for each in self.devices])
        kept = stores.part_of if isinstance(stores, KeptStores) else None
        self._group = DeviceGroup(self.devices, fleet.federation.spec, self._queue.settle, kept)
        self.resumption: Resumption | None = None
        """Watches a resumed run until all devices are back, or None if the run was never interrupted."""
        if "open" in state:
            self.resumption = Resumption(
                state["open"], state["resumed"], lambda: self.server, self.devices, self.clock.now_s
            )
            self.hub.on_publish = self.resumption.heard
            self._coordinator.on_counted = self.resumption.arrived
        self._queue.ready()
        schedule_faults(self, fleet.scenario, fleet.federation.spec.seed)
        observer.simulated(lambda names: self._group.board_figures(self.clock.now_s, names))

    def _new_devices(
        self, fleet: Fleet, stores: Mapping[str, Store], caches: Path | None, secured: Path | None
    ) -> tuple[VirtualDevice, ...]:
        may_sleep = len(fleet.devices) >= self._dormant_from and isinstance(self._engine, ExactEngine)
        shared = Surroundings(
            self.hub,
            self.clock,
            self._queue,
            federation=fleet.federation.spec.federation,
            caches=caches,
            secured=secured,
            common=CommonKnowledge(),
            kinds=DormantKinds() if may_sleep and caches is None and secured is None else None,
            awake=self._awake,
        )
        return tuple(VirtualDevice(device, stores.get(device.kit.id), shared) for device in fleet.devices)

    @property
    def server(self) -> Server:
        """The coordinator's server since its last start."""
        return self._coordinator.server

    def _measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        return self._group.measure(rounds, state, wanted)

    def _why_silent(self, name: str, exchange: AwaitedExchange) -> str:
        return self._group.why_silent(self._by_id[name].device.kit.number, exchange)

    def _work(self) -> FleetWork:
        found = self._totals.total(self.clock.now_s)
        return FleetWork(flops=found.flops, busy_s=found.busy_s, used_j=found.energy_j)

    def powered(self) -> tuple[int, int]:
        """(number of devices switched on, number of devices) of the run."""
        return self._group.powered(), len(self.devices)

    def models(self) -> Iterator[tuple[Device, Model]]:
        """Yield each device that has had work, and its model, in the order of their numbers."""
        return self._group.models()

    @property
    def spent(self) -> dict[str, DeviceCost]:
        """The cost of the run so far for each device, by id."""
        return self._group.spent(self.clock.now_s)

    def to_json(self) -> dict[str, Any]:
        """Return time, heat, batteries, joules and counts as plain values: the state outside ledger and stores."""
        now_s = self.clock.now_s
        return {
            "now_s": now_s,
            "begun_s": self.server.record.started_s,
            "hardware": self._group.hardware(now_s),
            "unclosed": saved_record.unclosed(self.server.record),
            "open": resumption_point(self.server, self._group.unfinished_s(now_s)),
            "resumed": self.resumed,
            "dormant": self._group.dormant(),
        }

    @property
    def resumed(self) -> Mapping[str, float]:
        """Extra cost of resuming after interrupts, reported separately."""
        return self.resumption.cost if self.resumption is not None else {}

    @property
    def virtual_s(self) -> float:
        """Virtual seconds of the run, without those of resuming after interrupts."""
        return self.clock.now_s - self.resumed.get("virtual_s", 0.0)

    def run(self) -> None:
        """Run until the run is over.

        Raises RunFailed if no event is left before that.  An interrupt leaves a checkpoint.
        """
        self._coordinator.server.connect()
        for device in self.devices:
            if device.powered:
                device.connect()
        try:
            with held_back() as interrupt:
                self._pass_time(interrupt)
        except BaseException:
            self._save()
            raise
        self._whole_fleet.complete()

    @property
    def untraced(self) -> Untraced:
        """The models that trained untraced."""
        return self._group.untraced() | self._awake.untraced

    def close(self) -> None:
        """Close the engine and the server."""
        self._engine.close()
        self.server.close()

    def _pass_time(self, between_events: Callable[[], None]) -> None:
        clock, over = self.clock, self._coordinator.over
        while not (over and self._group.all_over()):
            between_events()
            if clock.next_s > clock.now_s:
                self.server.observer.waited(self.server.record)
                self._queue.compute()
            if not clock.step():
                raise RunFailed("the simulated fleet came to a standstill")
            if self.resumption is not None:
                self.resumption.look(clock.now_s)
            over = self._coordinator.over
            if over and self.server.rounds.reason:
                return
            if self._checkpoints is not None and self._checkpoints.due():
                self._save()

    def power_cut(self, who: str, at_s: float, for_s: float) -> None:
        """Cut the power of a device, or of the `coordinator`, at `at_s`; it starts again after `for_s` seconds.

        Everything outside its store or ledger is lost.  A machine that is done by then keeps its power.
        """
        machines: dict[str, VirtualCoordinator | VirtualDevice] = {d.device.kit.id: d for d in self.devices}
        cut_power({"coordinator": self._coordinator, **machines}[who], self.clock, at_s, for_s)

    def lose_coordinator(self, at_s: float, for_s: float) -> None:
        """Implement FaultyFleet."""
        cut_power(self._coordinator, self.clock, at_s, for_s)

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save(self.server.ledger, self._group.copy_stores, self.to_json())


def cut_power(machine: VirtualCoordinator | VirtualDevice, clock: VirtualClock, at_s: float, for_s: float) -> None:
    """Cut the power of a machine at `at_s`, unless it is done by then; it starts again after `for_s` seconds."""

    def cut() -> None:
        if machine.powered and not machine.over:
            machine.power_off()
            clock.at(clock.now_s + for_s, machine.power_on)

    clock.at(at_s, cut)


def total_work(spent: Iterable[DeviceCost]) -> FleetWork:
    """Return the total cost of all devices."""
    each = tuple(spent)
    return FleetWork(
        flops=sum(one.flops for one in each),
        busy_s=sum(one.busy_s for one in each),
        used_j=sum(one.energy_j for one in each),
    )


class VirtualCoordinator:
    """A server that runs when it has a message or a deadline has come."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        hub: Hub,
        clock: VirtualClock,
        observer: RunObserver | None,
        *,
        public_server: PublicSetServer | None = None,
        work: Callable[[], FleetWork] = lambda: NO_WORK,
        new_server: Callable[..., Server] = Server,
        wrap_method: MethodWrapper = unchanged,
        begun_s: float | None = None,
        unclosed: Mapping[str, Any] | None = None,
        lab: Path | None = None,
        why_silent: Callable[[str], str] = nobody_knows,
    ) -> None:
        """begun_s, unclosed: for a resumed run, the time of its first exchange, and counts that are not in the ledger.

        lab: the folder with the keys, or None for unsigned frames.  why_silent: see RunRecord.
        """
        self._why_silent = why_silent
        self._work, self._wrap_method, self._lab = work, wrap_method, lab
        self._new_server = new_server
        self._fleet, self._hub, self._clock, self._observer = fleet, hub, clock, observer
        self._public_server = public_server
        self.powered = True
        self.on_counted: Callable[[Frame], None] = lambda _frame: None
        """Called with each frame after the server has counted it."""
        self._start(ledger, begun_s, unclosed)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.server.over

    def power_off(self) -> None:
        """End the coordinator's process."""
        self.powered = False
        self._hub.cut_power("coordinator")
        self._waker.stop()

    def power_on(self) -> None:
        """Start a new process from the ledger."""
        self.powered = True
        with TemporaryDirectory() as folder:
            kept = Path(folder) / "ledger.db"
            self.server.ledger.copy_to(kept)
            self.server.ledger.close()
            record = self.server.record
            self._start(Ledger(None, kept), record.started_s, saved_record.unclosed(record))  # the old process's counts
        self.server.connect()

    def _start(self, ledger: Ledger, begun_s: float | None, unclosed: Mapping[str, Any] | None) -> None:
        self._transport = self._hub.link("coordinator")
        self.server = self._new_server(
            spec=self._fleet.federation.spec,
            policy=self._fleet.federation.policy,
            method=self._wrap_method(ready_method(self._fleet.federation.spec, self._fleet.equipment)),
            transport=self._transport,
            ledger=ledger,
            roster=self._fleet.federation.roster,
            robust=self._fleet.federation.robust,
            observer=self._observer,
            public_server=self._public_server,
            work=self._work,
            clock=lambda: self._clock.now_s,
            begun_s=begun_s,
            security=LabSecurity(self._lab) if self._lab else None,
            timetable=timetable(self._fleet, lambda: self._clock.now_s),
        )
        self.server.record.why_silent = self._why_silent
        if unclosed is not None:
            saved_record.remember(self.server.record, unclosed)
        self._waker = self._transport.on_event = Waker(self._clock, self)

    def next_due_s(self) -> float | None:
        """Implement Wakeable."""
        return self.server.next_due_s()

    def act(self) -> None:
        """Implement Wakeable."""
        now_s = self._clock.now_s
        while (event := self._transport.poll(0.0)) is not None:
            self.server.handle(event, now_s)
            if isinstance(event, Incoming):
                self.on_counted(event.content)
        self.server.flush(now_s)
        self.server.tick(now_s)
