"""A fleet on a virtual clock: N agents and one server on a memory hub, in one thread; results repeat bit for bit.

The objects are those of a deployment; only time is simulated.  The board's profile gives the time of computing, the
link's profile the time of frames, and the clock jumps from event to event.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.ledger import Ledger
from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.record.run_record import NO_WORK, FleetWork, nobody_knows
from coordinator.serving.equipment import ready_method
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.server import Server
from edge_sdk.agent import Agent
from edge_sdk.agent_arguments import SimulatedId
from edge_sdk.agent_loop import INSTANCE_BYTES
from edge_sdk.device.participant import Participant
from edge_sdk.device.store import MemoryStore, Store
from edge_sdk.device.training.meter import Meter
from edge_sdk.errors import RunFailed
from edge_sdk.models.base import Model
from edge_sdk.protocol.frames.codec import CommonKnowledge
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Faults, Hub, MemoryTransport
from edge_sim.byzantine import agent_for
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.clock import LocalClock, VirtualClock
from edge_sim.clock.computation_queue import Computation, ComputationQueue
from edge_sim.clock.device_group import DeviceGroup
from edge_sim.clock.dormant import Dormant, DormantKinds
from edge_sim.clock.interrupts import held_back
from edge_sim.clock.resumption import Resumption, resumption_point
from edge_sim.clock.scenario_faults import DeviceFaults, schedule_faults
from edge_sim.clock.silence import AwaitedExchange, SilenceCauses
from edge_sim.clock.whole_fleet import Figures, Wanted, WholeFleet
from edge_sim.engines.base import Engine, ExactEngine, MethodWrapper, ask, unchanged
from edge_sim.engines.untraced import Untraced
from edge_sim.fleet.calendar import timetable
from edge_sim.fleet.fleet import Device, Fleet, hardware
from edge_sim.fleet.hardware import DeviceCost

DORMANT_FROM = 500
"""Fleets of so many devices build an agent only for devices that have work; smaller ones start fast enough."""


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
    ) -> None:
        """caches: a folder into which devices fetch the public set from the coordinator, or None to give them the set.

        secured: a folder with a lab in `lab` beside an identity folder for each device, or None for unsigned frames.

        state: what `to_json` returned, for a resumed run.  new_server: makes the coordinator, such as one that writes
        a trace.  engine: default: ExactEngine.  wrap_method: decides where uploads are added up.

        dormant_from: the number of devices from which on those without work yet have no agent in memory.
        """
        state = state or {"now_s": 0.0, "begun_s": None, "hardware": {}}
        self.clock = VirtualClock(state["now_s"])
        self.hub = Hub(self.clock, faults, faults_seed)
        self._checkpoints, self._dormant_from = checkpoints, dormant_from
        self._engine = engine or ExactEngine()
        self._queue = ComputationQueue(self._engine)
        self.devices: tuple[VirtualDevice, ...] = ()
        numbers = {each.kit.id: each.kit.number for each in fleet.devices}
        self._whole_fleet = WholeFleet(lambda: self.server, numbers, self._measure)
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
        self._group = DeviceGroup(self.devices, fleet.federation.spec, self._queue.settle)
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
        observer.simulated(lambda: self._group.board_figures(self.clock.now_s))

    def _new_devices(
        self, fleet: Fleet, stores: Mapping[str, Store], caches: Path | None, secured: Path | None
    ) -> tuple[VirtualDevice, ...]:
        common, kinds = CommonKnowledge(), DormantKinds()
        may_sleep = len(fleet.devices) >= self._dormant_from and isinstance(self._engine, ExactEngine)
        return tuple(
            VirtualDevice(
                device,
                stores.get(device.kit.id),
                self.hub,
                self.clock,
                fleet.federation.spec.federation,
                queue=self._queue,
                caches=caches,
                identity=secured / device.kit.id if secured else SimulatedId(device.kit.id),
                common=common,
                kinds=kinds if may_sleep and caches is None and secured is None else None,
            )
            for device in fleet.devices
        )

    @property
    def server(self) -> Server:
        """The coordinator's server since its last start."""
        return self._coordinator.server

    def _measure(self, rounds: int, state: Any, wanted: Sequence[Wanted]) -> list[Figures]:
        return self._group.measure(rounds, state, wanted)

    def _why_silent(self, name: str, exchange: AwaitedExchange) -> str:
        return self._group.why_silent(self._by_id[name].device.kit.number, exchange)

    def _work(self) -> FleetWork:
        return total_work(self.spent.values())

    def powered(self) -> tuple[int, int]:
        """(number of devices switched on, number of devices) of the run."""
        return self._group.powered(), len(self.devices)

    def models(self) -> Iterator[tuple[Device, Model]]:
        """Yield each device and its model, in the order of their numbers."""
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
            "unclosed": self.server.record.unclosed(),
            "open": resumption_point(self.server, self._group.unfinished_s(now_s)),
            "resumed": self.resumed,
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
        return self._group.untraced()

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
            self._start(Ledger(None, kept), record.started_s, record.unclosed())  # the old process's counts
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
            self.server.record.remember(unclosed)
        self._waker = _Waker(self._clock, self._wake, self.server.next_due_s)
        self._transport.on_event = self._waker.soon

    def _wake(self) -> None:
        now_s = self._clock.now_s
        while (event := self._transport.poll(0.0)) is not None:
            self.server.handle(event, now_s)
            if isinstance(event, Incoming):
                self.on_counted(event.content)
        self.server.flush(now_s)
        self.server.tick(now_s)


class VirtualDevice:
    """An agent whose computing takes virtual time."""

    def __init__(
        self,
        device: Device,
        store: Store | None,
        hub: Hub,
        clock: VirtualClock,
        federation: str,
        *,
        queue: ComputationQueue,
        caches: Path | None = None,
        identity: str | Path,
        common: CommonKnowledge | None = None,
        kinds: DormantKinds | None = None,
    ) -> None:
        """identity: the device's id, or a folder with its keys.  common: knowledge shared within this process.

        kinds: which devices may be dormant, or None if this one may not.
        """
        self._queue, self._identity, self._common = queue, identity, common
        self._cache = caches / device.kit.id if caches else None
        self.device, self.clock = device, clock
        self._hub, self._federation = hub, federation
        self.hardware = hardware(device)
        self.faults: DeviceFaults | None = None
        self.powered = True
        self.excused = False
        """Whether the run may end without this device, because a fault keeps it off."""
        conditions = device.conditions
        self._own = LocalClock(clock, offset_s=conditions.clock_offset_s, drift=conditions.clock_drift)
        self._agent_type = agent_for(conditions.byzantine, federation, device.kit.seed)
        self._dormant: Dormant | None = None
        """What there is of the device in place of its agent, or None while it is awake."""
        example = kinds.example(device) if kinds is not None and store is None else None
        if example is None:
            self._start(store)
            if kinds is not None:
                kinds.add(self)
        else:
            self._link()
            self._dormant = Dormant(device, example, self._transport, federation)

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""
        return self._dormant.over if self._dormant is not None else self.participant.over

    @property
    def dormant(self) -> bool:
        """Whether the device has no agent, because it has had no work yet."""
        return self._dormant is not None

    @property
    def agent(self) -> Agent:
        """The device's agent; a dormant device wakes."""
        if self._dormant is not None:
            self._wake_up(self._dormant)
        return self._agent

    @property
    def participant(self) -> Participant:
        """The participant of the agent; a dormant device wakes."""
        return self.agent.participant

    @property
    def online(self) -> bool:
        """Whether it is connected to the broker."""
        return self._transport.online

    def connect(self) -> None:
        """Switch the board on and connect to the broker."""
        self.hardware.power_on(self.clock.now_s)
        (self._dormant or self.participant).connect()
        if self.faults is not None:
            self.faults.schedule_battery_check()

    def power_off(self) -> None:
        """Switch the board off; its unfinished computation is lost."""
        self._queue.settle(self.participant)
        if isinstance(self.participant.context.store, MemoryStore):
            self.participant.context.store.hold()
        self.powered = False
        self.hardware.power_off(self.clock.now_s)
        self._hub.cut_power(self.device.kit.id)
        self._waker.stop()

    def power_on(self) -> None:
        """Start a new agent and model on the same store."""
        self.powered = True
        store = self.participant.context.store
        store.boot_epoch += 1
        self._start(store)
        self.connect()

    def _link(self) -> None:
        """Enter the broker's clients."""
        self._transport: MemoryTransport = self._hub.link(self.device.kit.id, self.hardware.transfer_s)
        self._computed = 0
        self._waker = _Waker(self.clock, self._wake, self._due_s)
        self._transport.on_event = self._waker.soon

    def _start(self, store: Store | None) -> None:
        self._link()
        self._build(store)

    def _wake_up(self, dormant: Dormant) -> None:
        """Build the agent, and give it what the dormant device has taken."""
        self._dormant = None
        self._transport.muted = True
        self._build(None)
        participant = self._agent.participant
        participant.connect()
        for event, now_s in dormant.happened:
            if event is None:
                participant.tick(now_s)
            else:
                participant.handle(event, now_s)
        self._transport.muted = False
        if not dormant.agrees_with(participant):
            raise RunFailed(f"{self.device.kit.id} woke in another state than it slept in: please report this")

    def _build(self, store: Store | None) -> None:
        agent: Agent = self._agent_type(
            federation=self._federation,
            broker=self._transport,
            identity=self._identity,
            model=self.device.kit.model(self.device.public),
            data=self.device.data,
            public=self.device.public if self._cache is None else None,
            public_cache=self._cache,
            state=store or MemoryStore(),
            board=self.device.kit.board_name,
            disclose_classes=True,
            privacy=self.device.kit.budget,
            sends_logs=False,
            share_weights=True,
            share_sample_codes=True,
            secret=self.device.kit.secret,
            proxy=self.device.kit.proxy_model(self.device.public),
            clock=lambda: self._own.now_s,
        )
        agent.on_link(lambda _line: None)  # simulated faults are expected: without this each would be logged
        self._agent = agent
        context = agent.participant.context
        if self._identity != self.device.kit.id:  # with keys, a device obeys only a Refusal that names its instance
            context.instance = secrets.token_bytes(INSTANCE_BYTES)
        context.serve = partial(ask, context.bench, self.device.kit.brought)
        context.common_knowledge = self._common
        self._queue.attach(self.device.kit.number, context.bench)

    def _due_s(self) -> float | None:
        due_s = (self._dormant or self.participant).next_due_s()
        return None if due_s is None else self._own.true_s(due_s)

    def _wake(self) -> None:
        now_s = self._own.now_s
        if self._dormant is not None and self._stayed_dormant(self._dormant, now_s):
            return
        device = self.participant
        self._queue.settle(device)
        while (event := self._transport.poll(0.0)) is not None:
            device.handle(event, now_s)
        device.tick(now_s)
        if device.work.busy and device.work.begun != self._computed:
            self._compute()

    def _stayed_dormant(self, dormant: Dormant, now_s: float) -> bool:
        """Take what is there; returns False, with the device awake, once something needs an agent."""
        while (event := self._transport.poll(0.0)) is not None:
            if not dormant.handle(event, now_s):
                self.participant.handle(event, now_s)
                return False
        dormant.tick(now_s)
        return True

    def _compute(self) -> None:
        """Begin the work at once, and finish it when the board would."""
        self._computed = self.participant.work.begun
        device, before, place = self.participant, replace(self.participant.context.bench.meter), self.clock.place()
        self._queue.add(Computation(device, lambda: self._computed_all(device, before, place)))

    def _computed_all(self, device: Participant, before: Meter, place: int) -> None:
        """Finish a computation.

        before: the meter at its start.  place: reserved in the order of that moment's events.
        """
        if device is not self.participant:
            return  # the board lost its power at this moment
        begun = self._computed = device.work.begun
        trained, inferred, steps = device.context.bench.meter.since(before)
        exchange = device.context.session.exchange_id
        slow_factor = self.faults.slow_factor(exchange) if self.faults is not None else 1.0
        took_s = self.hardware.compute(
            trained, inferred, self.clock.now_s, slow_factor=slow_factor, saved_bytes=device.work.unsaved_bytes
        )
        self.hardware.stepped(steps)
        if self.faults is not None:
            self.faults.computing(exchange, took_s)
        self.clock.at(self.clock.now_s + took_s, lambda: self._finish(device, begun), place)

    def _finish(self, device: Participant, begun: int) -> None:
        if not self.powered or device is not self.participant:
            return  # the board has lost its power since
        if device.work.busy and device.work.begun == begun:  # else a newer Assign came meanwhile
            device.finish_work(self._own.now_s)
            self.hardware.stored()
            self._waker.look()


class _Waker:
    """Calls a participant only when it has a message or its next deadline has come."""

    def __init__(self, clock: VirtualClock, act: Callable[[], None], due_s: Callable[[], float | None]) -> None:
        self._clock, self._act, self._due_s = clock, act, due_s
        self._soon = False
        self._stopped = False
        self._alarm_s: float | None = None

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped = True

    def soon(self) -> None:
        """Call after all events of the present moment."""
        if not self._soon:
            self._soon = True
            self._clock.at(self._clock.now_s, self._run)

    def look(self) -> None:
        """Set the alarm for the next deadline; no message needs a call."""
        if not self._soon and not self._stopped:
            self._set_alarm()

    def _run(self) -> None:
        self._soon = False
        if self._stopped:
            return
        self._act()
        self._set_alarm()

    def _set_alarm(self) -> None:
        due_s = self._due_s()
        if due_s is None or (self._alarm_s is not None and self._clock.now_s < self._alarm_s <= due_s):
            return
        self._alarm_s = due_s
        self._clock.at(due_s, self._ring)

    def _ring(self) -> None:
        if self._alarm_s is not None and self._clock.now_s >= self._alarm_s:
            self._alarm_s = None
        self._run()
