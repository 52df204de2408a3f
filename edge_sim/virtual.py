"""The fleet on a virtual clock: N agents and one server on a memory hub, in one thread, bit for bit repeatable.

The objects are those of a deployment.  Only time is made up: computing takes what the board's profile says, frames take
what the link's profile says, and nothing waits in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordinator.ledger import Ledger
from coordinator.server import Server, Watcher
from edge_sdk.agent import Agent
from edge_sdk.errors import RunFailed
from edge_sdk.protocol.wires import load_registered
from edge_sdk.store import Store
from edge_sdk.transport.memory import Faults, Hub, MemoryTransport
from edge_sim.checkpoint import Checkpoints
from edge_sim.clock import VirtualClock
from edge_sim.fleet import Device, Fleet, timings


class VirtualFleet:
    """A run in virtual time."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        ledger: Ledger,
        faults: Faults | None = None,
        faults_seed: int = 0,
        watcher: Watcher | None = None,
        stores: Mapping[str, Store] | None = None,
        keeper: Checkpoints | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.hub = Hub(self.clock, faults, faults_seed)
        federation = fleet.federation
        transport = self.hub.link("coordinator")
        self.server = Server(
            spec=federation.spec,
            policy=federation.policy,
            method=load_registered("coordinator.methods", federation.spec.method),
            transport=transport,
            ledger=ledger,
            roster=federation.roster,
            watcher=watcher,
            clock=lambda: self.clock.now_s,
        )
        self._keeper = keeper
        self._serve = _Waker(self.clock, self._wake_server, self.server.next_due_s)
        self._transport = transport
        transport.on_news = self._serve.soon
        stores = stores or {}
        self.devices = tuple(
            VirtualDevice(device, stores.get(device.kit.id), self.hub, self.clock, federation.spec.federation)
            for device in fleet.devices
        )

    def run(self) -> None:
        """Let time pass until the run is over.

        Raises RunFailed where nothing is left to happen before that.  An interrupt leaves a checkpoint.
        """
        self.server.connect()
        for device in self.devices:
            device.agent.connect()
        try:
            self._pass_time()
        except BaseException:
            self._save()
            raise

    def _pass_time(self) -> None:
        while not (self.server.over and all(device.agent.over for device in self.devices)):
            if not self.clock.step():
                raise RunFailed("the simulated fleet came to a standstill")
            if self.server.over and self.server.rounds.reason:
                return
            if self._keeper is not None and self._keeper.due():
                self._save()

    def _save(self) -> None:
        if self._keeper is not None:
            self._keeper.save(self.server.ledger, {d.device.kit.id: d.agent.store for d in self.devices})

    def _wake_server(self) -> None:
        now_s = self.clock.now_s
        while (event := self._transport.poll(0.0)) is not None:
            self.server.handle(event, now_s)
        self.server.flush(now_s)
        self.server.tick(now_s)


class VirtualDevice:
    """An agent whose computing takes virtual time."""

    def __init__(self, device: Device, store: Store | None, hub: Hub, clock: VirtualClock, federation: str) -> None:
        self.device, self.clock = device, clock
        self._compute_s, link = timings(device.kit)
        self._transport: MemoryTransport = hub.link(device.kit.id, link.transfer_s)
        self.agent = Agent(
            federation=federation,
            broker=self._transport,
            identity=device.kit.id,
            model=device.kit.model(device.public),
            data=device.data,
            public=device.public,
            state=store,
            board=device.kit.board,
            disclose_classes=True,
            clock=lambda: clock.now_s,
        )
        self.busy_s = 0.0
        self._computed = 0
        self._waker = _Waker(clock, self._wake, self.agent.next_due_s)
        self._transport.on_news = self._waker.soon

    def _wake(self) -> None:
        while (event := self._transport.poll(0.0)) is not None:
            self.agent.handle(event, self.clock.now_s)
        self.agent.tick(self.clock.now_s)
        if self.agent.working and self.agent.begun != self._computed:
            self._compute()

    def _compute(self) -> None:
        """Do the work at once; let it be finished when the board would be."""
        self._computed = begun = self.agent.begun
        before = (self.agent.meter.train_flops, self.agent.meter.infer_flops)
        while not self.agent.work_slice():
            if not self.agent.working:
                return
        took_s = self._compute_s(self.agent.meter.train_flops - before[0], self.agent.meter.infer_flops - before[1])
        self.busy_s += took_s
        self.clock.at(self.clock.now_s + took_s, lambda: self._finish(begun))

    def _finish(self, begun: int) -> None:
        if self.agent.working and self.agent.begun == begun:  # else a newer Assign came meanwhile
            self.agent.finish_work(self.clock.now_s)
            self._waker.soon()


class _Waker:
    """Calls a participant when there is news for it and when its next deadline comes, and no more often."""

    def __init__(self, clock: VirtualClock, act: Callable[[], None], due_s: Callable[[], float | None]) -> None:
        self._clock, self._act, self._due_s = clock, act, due_s
        self._soon = False
        self._alarm_s: float | None = None

    def soon(self) -> None:
        """Now, once whatever happens at this moment has happened."""
        if not self._soon:
            self._soon = True
            self._clock.at(self._clock.now_s, self._run)

    def _run(self) -> None:
        self._soon = False
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
