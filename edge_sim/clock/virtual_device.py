"""A device in virtual time: an agent whose computing takes the time of its board; while dormant, without the agent."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edge_sdk.agent.agent import Agent
from edge_sdk.agent.arguments import SimulatedId
from edge_sdk.agent.loop import INSTANCE_BYTES
from edge_sdk.device.participant import Participant
from edge_sdk.device.session import SessionState
from edge_sdk.device.store import MemoryStore, Store
from edge_sdk.device.training.meter import Meter
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sdk.protocol.frames.codec import CommonKnowledge
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub, MemoryTransport
from edge_sim.byzantine import agent_for
from edge_sim.clock.awake_devices import AwakeDevices
from edge_sim.clock.clock import VirtualClock
from edge_sim.clock.computation_queue import Computation, ComputationQueue
from edge_sim.clock.dormant import Dormant, DormantKinds, resumed_at_rest
from edge_sim.clock.scenario_faults import DeviceFaults
from edge_sim.clock.waker import Waker
from edge_sim.engines.base import ask
from edge_sim.fleet.fleet import Device, hardware


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all devices of a process have in common."""

    hub: Hub
    clock: VirtualClock
    queue: ComputationQueue
    federation: str = field(kw_only=True)
    caches: Path | None = field(default=None, kw_only=True)
    """A folder in which each device keeps the public set that it fetches, or None if all have it from the start."""
    secured: Path | None = field(default=None, kw_only=True)
    """A folder with a folder of keys for each device, or None for unsigned frames."""
    common: CommonKnowledge | None = field(default=None, kw_only=True)
    """Knowledge shared within this process."""
    kinds: DormantKinds | None = field(default=None, kw_only=True)
    """The kinds of devices that may be dormant, or None if all must be awake."""
    awake: AwakeDevices | None = field(default=None, kw_only=True)
    """Puts devices to sleep again."""


class VirtualDevice:
    """An agent whose computing takes virtual time."""

    __slots__ = (
        "_agent",
        "_agent_type",
        "_computed",
        "_dormant",
        "_own",
        "_shared",
        "_transport",
        "_waker",
        "device",
        "excused",
        "faults",
        "hardware",
        "powered",
    )

    def __init__(self, device: Device, store: Store | None, shared: Surroundings) -> None:
        self.device, self._shared = device, shared
        self.hardware = hardware(device)
        self.faults: DeviceFaults | None = None
        """Its faults, or None if it has none."""
        self.powered = True
        self.excused = False
        """Whether the run may end without this device, because a fault keeps it off."""
        conditions = device.conditions
        self._own = self.clock.local(conditions.clock_offset_s, conditions.clock_drift)
        self._agent_type = agent_for(conditions.byzantine, shared.federation, device.kit.seed)
        self._dormant: Dormant | None = None
        """The dormant form of the device, or None while it is awake."""
        kinds, awake = shared.kinds, shared.awake
        resumed = resumed_at_rest(store) if kinds is not None and store is not None else None
        words = kinds.words(device) if kinds is not None and (store is None or resumed is not None) else None
        if words is None:
            self._start(store)
            if kinds is not None:
                kinds.add(self)
                if store is not None and awake is not None:
                    awake.begin(self)
        else:
            self._link()
            self._dormant = Dormant(device, words, self._transport, resumed=resumed)
            if resumed is not None and awake is not None:
                awake.keep(self)

    @property
    def clock(self) -> VirtualClock:
        """The clock of the run."""
        return self._shared.clock

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""
        return self._dormant.over if self._dormant is not None else self.participant.over

    @property
    def dormant(self) -> bool:
        """Whether the device has no agent, because it has had no work yet."""
        return self._dormant is not None and self._dormant.store is None

    @property
    def sleeps(self) -> bool:
        """Whether the device has no agent; asking for it makes one."""
        return self._dormant is not None

    @property
    def bench(self) -> Workbench:
        """The workbench of its agent; a dormant device wakes."""
        return self.participant.context.bench

    @property
    def session(self) -> SessionState:
        """The state of its session."""
        return (self._dormant or self._agent.participant.context).session

    @property
    def store(self) -> Store:
        """Its store; that of a dormant device is made when it wakes."""
        kept = self._dormant.store if self._dormant is not None else None
        return kept if kept is not None else self.participant.context.store

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
        self._shared.queue.settle(self.participant)
        if isinstance(self.participant.context.store, MemoryStore):
            self.participant.context.store.hold()
        self.powered = False
        self.hardware.power_off(self.clock.now_s)
        self._shared.hub.cut_power(self.device.kit.id)
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
        self._transport: MemoryTransport = self._shared.hub.link(self.device.kit.id, self.hardware)
        self._computed = 0
        self._waker = self._transport.on_event = Waker(self.clock, self)

    def _start(self, store: Store | None) -> None:
        self._link()
        self._build(store)

    def fall_asleep(self) -> bool:
        """Give up the agent if the device rests and may; returns whether it sleeps now."""
        kinds, participant = self._shared.kinds, self._agent.participant
        words = kinds.words(self.device) if kinds is not None and not kinds.is_example(self) else None
        store = participant.context.store
        if words is None or self._dormant is not None or not (self.powered and participant.rests):
            return False
        if not (isinstance(store, MemoryStore) and store.up_to_date) or self._shared.queue.waits_for(participant):
            return False
        asleep = Dormant(self.device, words, self._transport, before=participant)
        if not asleep.agrees_with(participant):
            return False
        store.hold()
        store.forget_receipted()
        self._dormant = asleep
        del self._agent
        return True

    def _wake_up(self, dormant: Dormant) -> None:
        """Build the agent, and replay the events that the dormant device handled."""
        self._dormant = None
        self._transport.muted = True
        self._computed = 0
        self._build(dormant.store)
        participant = self._agent.participant
        if dormant.left is None:
            participant.connect()
        else:
            participant.take_over(dormant.left.session, dormant.left.sent)
        for event, now_s in dormant.happened():
            if event is None:
                participant.tick(now_s)
            elif isinstance(event, Incoming):
                participant.handle(Incoming(event.topic, event.frame), now_s)
            else:
                participant.handle(event, now_s)
        self._transport.muted = False
        if not dormant.agrees_with(participant):
            raise RunFailed(f"{self.device.kit.id} woke in another state than it slept in: please report this")
        if self._shared.awake is not None:
            self._shared.awake.add(self)

    def _build(self, store: Store | None) -> None:
        shared, name = self._shared, self.device.kit.id
        agent: Agent = self._agent_type(
            federation=shared.federation,
            broker=self._transport,
            identity=shared.secured / name if shared.secured else SimulatedId(name),
            model=self.device.kit.model(self.device.public),
            data=self.device.data,
            public=self.device.public if shared.caches is None else None,
            public_cache=shared.caches / name if shared.caches else None,
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
        if shared.secured:  # with keys, a device obeys only a Refusal that names its instance
            context.instance = secrets.token_bytes(INSTANCE_BYTES)
        context.serve = partial(ask, context.bench, self.device.kit.brought)
        context.common_knowledge = shared.common
        shared.queue.attach(self.device.kit.number, context.bench)

    def _is_present(self, participant: Participant) -> bool:
        return self._dormant is None and participant is self.participant

    def next_due_s(self) -> float | None:
        """Implement Wakeable."""
        due_s = (self._dormant or self.participant).next_due_s()
        return None if due_s is None else self._own.true_s(due_s)

    def act(self) -> None:
        """Implement Wakeable."""
        now_s = self._own.now_s
        if self._dormant is not None and self._stayed_dormant(self._dormant, now_s):
            return
        device = self.participant
        self._shared.queue.settle(device)
        while (event := self._transport.poll(0.0)) is not None:
            device.handle(event, now_s)
        device.tick(now_s)
        if device.work.busy and device.work.begun != self._computed:
            self._compute()

    def _stayed_dormant(self, dormant: Dormant, now_s: float) -> bool:
        """Take all waiting messages; returns False, with the device awake, once one of them needs an agent."""
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
        self._shared.queue.add(Computation(device, partial(self._computed_all, device, before, place)))

    def _computed_all(self, device: Participant, before: Meter, place: int) -> None:
        """Finish a computation.

        before: the meter at its start.  place: reserved in the order of that moment's events.
        """
        if not self._is_present(device):
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
        self.clock.at(self.clock.now_s + took_s, partial(self._finish, device, begun), place)

    def _finish(self, device: Participant, begun: int) -> None:
        if not (self.powered and self._is_present(device)):
            return  # the board has lost its power since
        if device.work.busy and device.work.begun == begun:  # else a newer Assign came meanwhile
            device.finish_work(self._own.now_s)
            self.hardware.stored()
            self._waker.look()
